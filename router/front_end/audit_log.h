// The audit log: who asked what of this router, from where, and with which result. One JSON object
// a line, in a file of its own, and never the text of a prompt or an answer:
//   {"time":"2026-11-25T01:02:03.004Z","router":"router-0","event":"request","tenant":"alice",
//    "key":"3f2a9c01d4b7","from":"192.0.2.7","front_end":"http","what":"POST /v1/completions",
//    "request_id":"r-17","result":"OK","prompt_tokens":37,"output_tokens":8}
//   event  "request": a call of a tenant; "login": a key that was refused; "admin": an operator's
//          action; "keys": the keys file was read; "lost": `count` lines could not be kept
//   key    the first digits of the key's hash, as `tandem keys list` shows them
// Callers only append to memory, so the log never holds up a request. One thread writes. What it
// cannot write (the disk is full, slow or gone) waits in memory up to kBytesMax; beyond that lines
// are lost, counted, and the count becomes a line once there is room. Nothing is written in part: a
// line that did not fit is completed, or begun again in a new file. A file that was moved or
// removed is replaced by a new one of its name within kLookEvery, as logrotate expects. Lines are
// not synchronised to the disk: a crash of the machine may lose the last seconds, the end of the
// process loses none.
//
// Thread safety: any thread. Owner: the router's server; it outlives the calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/steady_cond_var.h"
#include "common/runtime/thread.h"

namespace tandem::router {

// What one line says. Empty texts and negative counts are left out.
struct AuditLine {
  absl::string_view event;
  std::string tenant, key, from, front_end, what, request_id, result;
  int64_t prompt_tokens = -1, output_tokens = -1;
};

class AuditLog {
 public:
  // Lines that wait to be written. As many again may be in the writer's hands.
  static constexpr size_t kBytesMax = size_t{8} << 20;
  // Lines a second about callers without a known key; further ones are counted as lost, so that
  // strangers cannot fill the disk.
  static constexpr int64_t kStrangersPerSecond = 100;
  // Bytes of a text in a line; the rest is cut off.
  static constexpr size_t kTextBytesMax = 256;
  static constexpr absl::Duration kLookEvery = absl::Seconds(1);

  // Appends to the file at `path`, which is made, readable by its owner alone, if it is not there.
  // `router_id` stands in each line. kInvalidArgument when the file cannot be opened.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& path,
                                                        const std::string& router_id);
  // Writes what waits, unless the file takes nothing, and closes it.
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  void Record(const AuditLine& line);
  // A line about a caller without a known key.
  void RecordStranger(const AuditLine& line, absl::Time now);

  // Lines that were lost so far, those of strangers beyond their rate included.
  int64_t lost() const;
  // Waits until all that was recorded before has been written, or for `timeout`. True: it was.
  bool Flush(absl::Duration timeout);

 private:
  AuditLog(std::string path, std::string router_id);
  void Run();
  // Opens the file anew if `path_` names another one, or none.
  void ReopenIfMoved();
  absl::Status Reopen();
  // Takes over what waits. REQUIRES: writing_ is empty.
  void TakeWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes from writing_; true when all of it is written.
  bool Write();
  void Append(std::string text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || !waiting_.empty();
  }
  bool AllWritten() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return waiting_.empty() && !busy_;
  }

  const std::string path_, router_id_;
  // Of the writing thread, and of Open before it starts.
  int file_ = -1;
  std::string writing_;   // whole lines
  size_t written_ = 0;    // bytes of writing_
  bool failing_ = false;  // the last write failed
  absl::Time look_at_ = absl::InfinitePast();
  absl::Time tell_lost_at_ = absl::InfinitePast();

  mutable absl::Mutex mutex_;
  SteadyCondVar changed_;  // with mutex_: HasWork or AllWritten may say something else
  std::string waiting_ ABSL_GUARDED_BY(mutex_);  // whole lines
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;    // the writer has lines that are not written
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t lost_untold_ ABSL_GUARDED_BY(mutex_) = 0;       // of those, without a line that says so
  int64_t strangers_second_ ABSL_GUARDED_BY(mutex_) = 0;  // since the epoch
  int64_t strangers_ ABSL_GUARDED_BY(mutex_) = 0;         // lines about them in that second
  Thread thread_;
};

}  // namespace tandem::router
