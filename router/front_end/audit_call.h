// One call while it is answered, for the audit log: who made it, and what came of it. The line is
// written when the last owner lets go, so each call has one line, however it ends.
//
// Thread safety: any thread.
// Owner: shared by the front end's call and its answer sessions; the AuditLog outlives it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "router/front_end/audit_log.h"
#include "router/front_end/tenant.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

class AuditCall {
 public:
  struct Caller {
    std::string from;       // the address, as failed_keys.h names sources
    std::string front_end;  // "http", "grpc" or "admin"
    std::string what;       // "POST /v1/completions", or gRPC's name of the method
    std::string request_id;
    absl::string_view authorization;  // "Bearer KEY"; only until the constructor returns
  };

  // Null without a log.
  static std::shared_ptr<AuditCall> Begin(AuditLog* log, const Caller& caller, bool is_admin);

  AuditCall(AuditLog& log, const Caller& caller, bool is_admin);
  ~AuditCall();
  AuditCall(const AuditCall&) = delete;
  AuditCall& operator=(const AuditCall&) = delete;

  // Whose key it is; null in a router without keys. Never called: the caller has no known key, and
  // the line is about a login.
  void SetTenant(const Tenant* tenant);
  // As the client named it.
  void SetRequestId(const std::string& request_id);
  // The first failure counts; without any call the result is CANCELLED.
  void SetResult(const absl::Status& status);
  void SetHttpResult(int status);
  // One of the call's answers has ended.
  void OnFinished(const v1::Finished& finished);
  // What is known of answers that the client does not get: of a request that failed, and of
  // best_of.
  void OnUnfinished(const v1::Usage& usage);

 private:
  void Add(const v1::Usage& usage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  AuditLog& log_;
  absl::Mutex mutex_;
  AuditLine line_ ABSL_GUARDED_BY(mutex_);
  bool known_ ABSL_GUARDED_BY(mutex_) = false;  // its key
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem::router
