// The processors that a process may use, and where to run threads on them. A node reads which
// processors share a core, which memory node (NUMA) each is near, and how much processor time its
// control groups grant; then it pins its compute threads.
// Source: the kernel's affinity mask, /sys/devices/system, /proc/self/cgroup and /sys/fs/cgroup
// (both versions).
// Thread safety: pure functions of the system's files. PinCallingThread acts on the calling thread
// alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

struct Processor {
  int32_t id = 0;           // the kernel's number
  int32_t core = 0;         // the lowest id among the hardware threads of its core
  int32_t memory_node = 0;  // NUMA node
};

struct Processors {
  std::vector<Processor> usable;  // ascending id, at least one
  double granted = 1;  // processor time, in processors; usable.size() when no group limits it

  // Whether a control group grants less time than the usable processors have.
  bool limited() const { return granted < static_cast<double>(usable.size()); }
};

// The processors of the calling thread's affinity mask. Defaults replace facts that cannot be read:
// one core per processor, one memory node, no limit.
Processors ReadProcessors();
// The same for a process that may run on the ids `allowed`. `root`: a prefix of all paths, "" for
// this machine.
Processors ReadProcessors(const std::string& root, const std::vector<int32_t>& allowed);

// The first usable processor of each core, ordered by memory node, then by core.
std::vector<Processor> OneOfEachCore(const Processors& processors);

// The default number of compute threads: one per core, at most `granted`, at least one.
int DefaultComputeThreads(const Processors& processors);

// Parses "0-3,8" into ascending ids without duplicates; FormatProcessorList is the inverse. Errors:
// kInvalidArgument names the part that is neither a number nor a range.
absl::StatusOr<std::vector<int32_t>> ParseProcessorList(absl::string_view text);
std::string FormatProcessorList(const std::vector<int32_t>& ids);

struct ComputePlaces {
  std::vector<int32_t> all;      // ids on which any thread of the node may run
  std::vector<int32_t> compute;  // the id of each compute thread
};
// Chooses the processors of `threads` compute threads from `list` ("all" = every usable one), one
// per core. With `threads` = 0 each core gets a thread; where there are eight cores or more, one
// core stays free for the threads that move messages. Errors: kInvalidArgument when `list` cannot
// be parsed, names a processor that is not usable, or has fewer cores than `threads`.
absl::StatusOr<ComputePlaces> PlaceComputeThreads(const Processors& processors,
                                                  absl::string_view list, int threads);

// Restricts the calling thread, and the threads that it starts later, to these processors.
// Errors: kInvalidArgument when the kernel refuses.
absl::Status PinCallingThread(const std::vector<int32_t>& ids);

}  // namespace tandem
