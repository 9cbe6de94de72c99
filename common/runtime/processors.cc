#include "common/runtime/processors.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <sstream>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/runtime/control_groups.h"

namespace tandem {
namespace {

// The most processors that a kernel can be built for (CONFIG_NR_CPUS).
constexpr int32_t kProcessorsMax = 8192;
// A node with at least this many cores leaves one of them to its other threads.
constexpr size_t kCoresToSpareOne = 8;

// Empty when the file is missing or is not a list.
std::vector<int32_t> ReadList(const std::string& path) {
  return ParseProcessorList(ReadSmallFile(path)).value_or(std::vector<int32_t>());
}

std::map<int32_t, int32_t> MemoryNodes(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node";
  std::map<int32_t, int32_t> node_of;
  for (const int32_t node : ReadList(folder + "/online")) {
    for (const int32_t id : ReadList(absl::StrCat(folder, "/node", node, "/cpulist"))) {
      node_of[id] = node;
    }
  }
  return node_of;
}

// The processor time that a group grants, in processors; nullopt when it sets no limit.
std::optional<double> GrantOf(const ControlGroup& group) {
  double quota = 0, period = 0;
  std::string quota_text, period_text;
  if (group.first_version) {
    quota_text = ReadSmallFile(group.folder + "/cpu.cfs_quota_us");
    period_text = ReadSmallFile(group.folder + "/cpu.cfs_period_us");
  } else {
    std::istringstream words(ReadSmallFile(group.folder + "/cpu.max"));
    words >> quota_text >> period_text;
  }
  const bool limits = absl::SimpleAtod(quota_text, &quota) &&
                      absl::SimpleAtod(period_text, &period) && quota > 0 && period > 0;
  return limits ? std::make_optional(quota / period) : std::nullopt;
}

// The processors of this thread's affinity mask; empty when the kernel does not tell.
std::vector<int32_t> AllowedProcessors() {
  std::vector<int32_t> allowed;
  cpu_set_t* set = CPU_ALLOC(kProcessorsMax);
  const size_t bytes = CPU_ALLOC_SIZE(kProcessorsMax);
  if (sched_getaffinity(0, bytes, set) == 0) {
    for (int32_t id = 0; id < kProcessorsMax; ++id) {
      if (CPU_ISSET_S(static_cast<size_t>(id), bytes, set)) allowed.push_back(id);
    }
  }
  CPU_FREE(set);
  return allowed;
}

absl::Status CheckUsable(const Processors& processors, const std::vector<int32_t>& ids,
                         absl::string_view list) {
  std::vector<int32_t> usable;
  for (const Processor& processor : processors.usable) usable.push_back(processor.id);
  for (const int32_t id : ids) {
    if (std::binary_search(usable.begin(), usable.end(), id)) continue;
    return absl::InvalidArgumentError(absl::StrCat("processor ", id, " of '", list,
                                                   "' is not one that this process may use; they "
                                                   "are ",
                                                   FormatProcessorList(usable)));
  }
  return absl::OkStatus();
}

}  // namespace

Processors ReadProcessors() { return ReadProcessors("", AllowedProcessors()); }

Processors ReadProcessors(const std::string& root, const std::vector<int32_t>& allowed) {
  const std::map<int32_t, int32_t> node_of = MemoryNodes(root);
  Processors processors;
  for (const int32_t id : allowed) {
    const std::vector<int32_t> siblings = ReadList(
        absl::StrCat(root, "/sys/devices/system/cpu/cpu", id, "/topology/thread_siblings_list"));
    const auto node = node_of.find(id);
    processors.usable.push_back({id, siblings.empty() ? id : std::min(id, siblings.front()),
                                 node == node_of.end() ? 0 : node->second});
  }
  if (processors.usable.empty()) processors.usable.push_back({});
  std::sort(processors.usable.begin(), processors.usable.end(),
            [](const Processor& a, const Processor& b) { return a.id < b.id; });
  const double all = static_cast<double>(processors.usable.size());
  processors.granted = all;
  for (const ControlGroup& group : ControlGroupsOf(root, "cpu")) {
    processors.granted = std::min(processors.granted, GrantOf(group).value_or(all));
  }
  return processors;
}

std::vector<Processor> OneOfEachCore(const Processors& processors) {
  std::map<std::pair<int32_t, int32_t>, Processor> first;
  for (const Processor& processor : processors.usable) {
    first.try_emplace({processor.memory_node, processor.core}, processor);
  }
  std::vector<Processor> cores;
  for (const auto& [place, processor] : first) cores.push_back(processor);
  return cores;
}

int DefaultComputeThreads(const Processors& processors) {
  const auto cores = static_cast<int>(OneOfEachCore(processors).size());
  return std::max(1, std::min(cores, static_cast<int>(processors.granted)));
}

absl::StatusOr<std::vector<int32_t>> ParseProcessorList(absl::string_view text) {
  std::vector<int32_t> ids;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int32_t first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last) ||
        first < 0 || last < first || last >= kProcessorsMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "' of '", text,
                       "' is neither a processor nor a range of them; expected such as 0-3,8, "
                       "below ",
                       kProcessorsMax));
    }
    for (int32_t id = first; id <= last; ++id) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::string FormatProcessorList(const std::vector<int32_t>& ids) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < ids.size();) {
    size_t end = begin + 1;
    while (end < ids.size() && ids[end] == ids[end - 1] + 1) ++end;
    parts.push_back(end - begin == 1 ? absl::StrCat(ids[begin])
                                     : absl::StrCat(ids[begin], "-", ids[end - 1]));
    begin = end;
  }
  return absl::StrJoin(parts, ",");
}

absl::StatusOr<ComputePlaces> PlaceComputeThreads(const Processors& processors,
                                                  absl::string_view list, int threads) {
  ComputePlaces places;
  if (list == "all") {
    for (const Processor& processor : processors.usable) places.all.push_back(processor.id);
  } else {
    ASSIGN_OR_RETURN(places.all, ParseProcessorList(list));
    RETURN_IF_ERROR(CheckUsable(processors, places.all, list));
  }
  Processors mine;
  for (const Processor& processor : processors.usable) {
    if (std::binary_search(places.all.begin(), places.all.end(), processor.id)) {
      mine.usable.push_back(processor);
    }
  }
  for (const Processor& core : OneOfEachCore(mine)) places.compute.push_back(core.id);
  const size_t cores = places.compute.size();
  if (threads > static_cast<int>(cores)) {
    return absl::InvalidArgumentError(
        absl::StrCat(threads, " compute threads do not fit on processors ",
                     FormatProcessorList(places.all), ", which have ", cores, " cores"));
  }
  const size_t by_default = cores >= kCoresToSpareOne ? cores - 1 : cores;
  places.compute.resize(threads > 0 ? static_cast<size_t>(threads) : by_default);
  return places;
}

absl::Status PinCallingThread(const std::vector<int32_t>& ids) {
  cpu_set_t* set = CPU_ALLOC(kProcessorsMax);
  const size_t bytes = CPU_ALLOC_SIZE(kProcessorsMax);
  CPU_ZERO_S(bytes, set);
  for (const int32_t id : ids) CPU_SET_S(static_cast<size_t>(id), bytes, set);
  const int rc = sched_setaffinity(0, bytes, set);
  const int error = errno;
  CPU_FREE(set);
  if (rc == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cannot pin the thread to processors ",
                                                 FormatProcessorList(ids), ": ",
                                                 std::strerror(error)));
}

}  // namespace tandem
