// The processors that a process may use: which of them share a core and which memory is near, how
// much of their time a control group grants, and threads that stay where they are put.
// Source: the kernel's affinity mask, /sys/devices/system, /proc/self/cgroup and /sys/fs/cgroup
// (both versions). Thread safety: pure functions, but for those that say "calling thread".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

struct Processor {
  int32_t id = 0;           // as the kernel numbers it
  int32_t core = 0;         // lowest id of those that are threads of one core
  int32_t memory_node = 0;  // NUMA node
};

struct Processors {
  std::vector<Processor> usable;  // ascending id, at least one
  double granted = 1;  // processors' worth of time; usable.size() where nothing limits it

  // A control group gives less time than the processors have.
  bool limited() const { return granted < static_cast<double>(usable.size()); }
};

// Of the calling thread. What cannot be read counts as absent: one core a processor, one memory
// node, no limit.
Processors ReadProcessors();
// Of a process that may run on `allowed`, as files below `root` ("" = this machine's) describe it.
Processors ReadProcessors(const std::string& root, const std::vector<int32_t>& allowed);

// The first processor of each core, in order of memory nodes, then cores.
std::vector<Processor> OneOfEachCore(const Processors& processors);

// Compute threads where nobody says how many: one a core, no more than the time granted allows, at
// least one.
int DefaultComputeThreads(const Processors& processors);

// "0-3,8" as ascending ids without doubles, and back. Errors: kInvalidArgument naming the part that
// is not a number or a range.
absl::StatusOr<std::vector<int32_t>> ParseProcessorList(absl::string_view text);
std::string FormatProcessorList(const std::vector<int32_t>& ids);

// Of the processors named by `list` ("all" = the usable ones), those that compute threads take: one
// of each core, `threads` of them; 0 = as many as there are, but for one of eight or more, which is
// left to the threads that move messages. Errors: kInvalidArgument for a list that cannot be read,
// names a processor that is not usable, or has fewer cores than `threads`.
struct ComputePlaces {
  std::vector<int32_t> all;      // where any thread of the node may run
  std::vector<int32_t> compute;  // one for each compute thread
};
absl::StatusOr<ComputePlaces> PlaceComputeThreads(const Processors& processors,
                                                  absl::string_view list, int threads);

// The calling thread, and threads that it starts from now on, run on these processors alone.
// Errors: kInvalidArgument where the kernel refuses.
absl::Status StayOn(const std::vector<int32_t>& ids);

}  // namespace tandem
