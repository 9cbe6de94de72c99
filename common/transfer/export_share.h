// Which part of the transfer thread's processor time belongs to an export. The thread serves all
// transfers at once, so the time since the export before ended is divided by bytes.
// Thread safety: none; the transfer thread. Owner: TransferService.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/time/time.h"

namespace tandem::transfer {

class ExportShare {
 public:
  // An export of `bytes` has ended. `moved`: the bytes that the thread has sent and received in
  // all, the export's included; `worked`: the processor time that moving took it in all. 0 if
  // nothing was moved.
  absl::Duration Take(int64_t bytes, int64_t moved, absl::Duration worked) {
    const int64_t moved_since = moved - std::exchange(moved_, moved);
    const absl::Duration worked_since = worked - std::exchange(worked_, worked);
    if (moved_since <= 0) return absl::ZeroDuration();
    return worked_since * (static_cast<double>(bytes) / static_cast<double>(moved_since));
  }

 private:
  int64_t moved_ = 0;
  absl::Duration worked_;
};

}  // namespace tandem::transfer
