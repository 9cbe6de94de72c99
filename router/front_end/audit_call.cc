#include "router/front_end/audit_call.h"

#include <algorithm>

#include "common/runtime/clock.h"
#include "router/front_end/api_keys.h"

namespace tandem::router {
namespace {

// The code that stands for an HTTP status in the log.
absl::StatusCode CodeOf(int http_status) {
  if (http_status < 400) return absl::StatusCode::kOk;
  switch (http_status) {
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 409:
      return absl::StatusCode::kAlreadyExists;
    case 429:
      return absl::StatusCode::kResourceExhausted;
    case 499:
      return absl::StatusCode::kCancelled;
    case 503:
      return absl::StatusCode::kUnavailable;
    case 504:
      return absl::StatusCode::kDeadlineExceeded;
    default:
      return http_status < 500 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kInternal;
  }
}

}  // namespace

std::shared_ptr<AuditCall> AuditCall::Begin(AuditLog* log, const Caller& caller, bool is_admin) {
  return log == nullptr ? nullptr : std::make_shared<AuditCall>(*log, caller, is_admin);
}

AuditCall::AuditCall(AuditLog& log, const Caller& caller, bool is_admin) : log_(log) {
  absl::MutexLock lock(&mutex_);
  line_ = {.event = is_admin ? "admin" : "request",
           .key = KeyName(caller.authorization),
           .from = caller.from,
           .front_end = caller.front_end,
           .what = caller.what,
           .request_id = caller.request_id,
           .result = absl::StatusCodeToString(absl::StatusCode::kCancelled)};
}

AuditCall::~AuditCall() {
  absl::MutexLock lock(&mutex_);
  if (known_) {
    log_.Record(line_);
    return;
  }
  // The digits of a wrong key's hash would help to find what was typed.
  line_.event = "login";
  line_.key.clear();
  log_.RecordStranger(line_, RealClock().Now());
}

void AuditCall::SetTenant(const Tenant* tenant) {
  absl::MutexLock lock(&mutex_);
  if (tenant != nullptr) line_.tenant = tenant->name();
  known_ = true;
}

void AuditCall::SetRequestId(const std::string& request_id) {
  absl::MutexLock lock(&mutex_);
  line_.request_id = request_id;
}

void AuditCall::SetResult(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (failed_) return;
  failed_ = !status.ok();
  line_.result = absl::StatusCodeToString(status.code());
}

void AuditCall::SetHttpResult(int status) { SetResult(absl::Status(CodeOf(status), "")); }

void AuditCall::OnFinished(const v1::Finished& finished) {
  if (finished.reason() == v1::FINISH_REASON_ABORTED) SetResult(absl::CancelledError(""));
  absl::MutexLock lock(&mutex_);
  Add(finished.usage());
}

void AuditCall::OnUnfinished(const v1::Usage& usage) {
  absl::MutexLock lock(&mutex_);
  Add(usage);
}

void AuditCall::Add(const v1::Usage& usage) {
  line_.prompt_tokens = std::max<int64_t>(line_.prompt_tokens, 0) + usage.prompt_tokens();
  line_.output_tokens = std::max<int64_t>(line_.output_tokens, 0) + usage.output_tokens();
}

}  // namespace tandem::router
