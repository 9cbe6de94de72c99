#include "router/front_end/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"
#include "common/telemetry/log.h"

namespace tandem::router {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson NewLine(const std::string& router_id, absl::string_view event) {
  return {
      {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", RealClock().Now(), absl::UTCTimeZone())},
      {"router", router_id},
      {"event", std::string(event)}};
}

std::string TextOf(const OrderedJson& line) {
  // Bytes that are no UTF-8 become U+FFFD.
  return line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace

AuditLog::AuditLog(std::string path, std::string router_id)
    : path_(std::move(path)), router_id_(std::move(router_id)) {}

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const std::string& path,
                                                         const std::string& router_id) {
  auto log = std::unique_ptr<AuditLog>(new AuditLog(path, router_id));
  RETURN_IF_ERROR(log->Reopen());
  log->thread_ = Thread("audit-log", [raw = log.get()] { raw->Run(); });
  return log;
}

AuditLog::~AuditLog() {
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    changed_.SignalAll();
  }
  thread_.Join();
  if (file_ >= 0) close(file_);
}

void AuditLog::Record(const AuditLine& line) {
  OrderedJson json = NewLine(router_id_, line.event);
  const auto add = [&json](const char* name, const std::string& text) {
    if (!text.empty()) json[name] = text.substr(0, kTextBytesMax);
  };
  add("tenant", line.tenant);
  add("key", line.key);
  add("from", line.from);
  add("front_end", line.front_end);
  add("what", line.what);
  add("request_id", line.request_id);
  add("result", line.result);
  if (line.prompt_tokens >= 0) json["prompt_tokens"] = line.prompt_tokens;
  if (line.output_tokens >= 0) json["output_tokens"] = line.output_tokens;
  std::string text = TextOf(json);
  absl::MutexLock lock(&mutex_);
  Append(std::move(text));
}

void AuditLog::Append(std::string text) {
  if (waiting_.size() + text.size() <= kBytesMax) {
    waiting_ += text;
    changed_.SignalAll();
    return;
  }
  ++lost_;
  ++lost_untold_;
}

void AuditLog::RecordStranger(const AuditLine& line, absl::Time now) {
  {
    absl::MutexLock lock(&mutex_);
    const int64_t second = absl::ToUnixSeconds(now);
    if (second != std::exchange(strangers_second_, second)) strangers_ = 0;
    if (++strangers_ > kStrangersPerSecond) {
      ++lost_;
      ++lost_untold_;
      return;
    }
  }
  Record(line);
}

int64_t AuditLog::lost() const {
  absl::MutexLock lock(&mutex_);
  return lost_;
}

bool AuditLog::Flush(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  changed_.WaitFor(&mutex_, timeout,
                   [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return AllWritten(); });
  return AllWritten();
}

// ---- the writing thread

absl::Status AuditLog::Reopen() {
  const int file = open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("audit-log: cannot open ", path_, ": ", std::strerror(errno)));
  }
  if (file_ >= 0) close(file_);
  file_ = file;
  // A line that was begun in the old file is whole in the new one.
  const size_t end = writing_.substr(0, written_).rfind('\n');
  written_ = end == std::string::npos ? 0 : end + 1;
  // The end of another process may have cut off its last line.
  struct stat now = {};
  char last = '\n';
  if (fstat(file, &now) == 0 && S_ISREG(now.st_mode) && now.st_size > 0 &&
      pread(file, &last, 1, now.st_size - 1) == 1 && last != '\n') {
    writing_.insert(written_, 1, '\n');
  }
  return absl::OkStatus();
}

void AuditLog::ReopenIfMoved() {
  const absl::Time now = RealClock().Now();
  if (now < look_at_) return;
  look_at_ = now + kLookEvery;
  struct stat mine = {}, named = {};
  const bool same = fstat(file_, &mine) == 0 && stat(path_.c_str(), &named) == 0 &&
                    mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
  if (same) return;
  // Where no new file can be made, lines go on into the old one.
  if (const absl::Status reopened = Reopen(); !reopened.ok())
    Log(LogLevel::kWarning, "the audit log's file was moved, and there is no new one",
        {{"why", reopened.message()}});
}

bool AuditLog::Write() {
  while (written_ < writing_.size()) {
    const ssize_t bytes = write(file_, writing_.data() + written_, writing_.size() - written_);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) {
      if (!std::exchange(failing_, true))
        Log(LogLevel::kWarning, "the audit log cannot be written: lines wait in memory",
            {{"file", path_}, {"why", std::strerror(bytes < 0 ? errno : ENOSPC)}});
      return false;
    }
    written_ += static_cast<size_t>(bytes);
  }
  if (std::exchange(failing_, false)) Log(LogLevel::kInfo, "the audit log is written again");
  writing_.clear();
  written_ = 0;
  return true;
}

void AuditLog::TakeWaiting() {
  std::swap(writing_, waiting_);
  busy_ = !writing_.empty();
  const absl::Time now = RealClock().Now();
  // Once a second, or strangers could fill the disk with such lines.
  if (lost_untold_ == 0 || (now < tell_lost_at_ && !closed_)) return;
  tell_lost_at_ = now + kLookEvery;
  OrderedJson line = NewLine(router_id_, "lost");
  line["count"] = std::exchange(lost_untold_, 0);
  writing_ += TextOf(line);
  busy_ = true;
}

void AuditLog::Run() {
  bool over = false;
  while (!over) {
    {
      absl::MutexLock lock(&mutex_);
      // After a failed write the next try comes when the file is looked at again.
      changed_.WaitFor(&mutex_, kLookEvery, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return failing_ ? closed_ : HasWork();
      });
      if (writing_.empty()) TakeWaiting();
      over = closed_;
    }
    ReopenIfMoved();
    const bool all = Write();
    absl::MutexLock lock(&mutex_);
    busy_ = !all;
    // At the end, what came last too. A file that takes nothing is left.
    if (over && all && !waiting_.empty()) over = false;
    changed_.SignalAll();
  }
}

}  // namespace tandem::router
