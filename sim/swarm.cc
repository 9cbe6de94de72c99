#include "sim/swarm.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/runtime/clock.h"
#include "common/runtime/thread.h"

namespace tandem::sim {
namespace {

void Merge(const Schedule& schedule, const SimReport& run, SwarmReport& total) {
  ++total.schedules;
  total.events += run.events;
  total.virtual_us += run.virtual_us;
  total.faults += static_cast<int64_t>(schedule.faults.size());
  total.requests += static_cast<int64_t>(schedule.requests.size());
  total.sequences_migrated += run.sequences_migrated;
  total.kv_tokens_moved += run.kv_tokens_moved;
  total.blocks_adopted += run.blocks_adopted;
  total.blocks_fetched += run.blocks_fetched;
  total.part_tokens_fetched += run.part_tokens_fetched;
  total.blocks_loaded += run.blocks_loaded;
  total.blocks_read_from_host += run.blocks_read_from_host;
  total.units_lent += run.units_lent;
  total.loans_lost += run.loans_lost;
  total.units_regained += run.units_regained;
  total.rebuilds_begun += run.rebuilds_begun;
  total.rebuilds_done += run.rebuilds_done;
  total.rows_rebuilt += run.rows_rebuilt;
  total.rebuild_reads += run.rebuild_reads;
  total.loads_given_up += run.loads_given_up;
  total.loans_moved += run.loans_moved;
  total.loans_home += run.loans_home;
  total.loans_taken_over += run.loans_taken_over;
  total.loans_planned += run.loans_planned;
  total.clients.done += run.clients.done;
  total.clients.cancelled += run.clients.cancelled;
  total.clients.ids_reused += run.clients.ids_reused;
  total.clients.turns += run.clients.turns;
  total.clients.asked_again += run.clients.asked_again;
  total.clients.failed += run.clients.failed;
  total.clients.refused += run.clients.refused;
  for (size_t fault = 0; fault < run.coverage.size(); ++fault)
    for (size_t state = 0; state < kMachineStates.size(); ++state)
      total.coverage[fault][state] += run.coverage[fault][state];
  if (!run.violations.empty()) total.failures.push_back({schedule.seed, run.violations.front()});
}

bool Fails(const Schedule& schedule, const std::string& checker) {
  const SimReport report = RunSchedule(schedule);
  return std::any_of(report.violations.begin(), report.violations.end(),
                     [&](const Violation& v) { return v.checker == checker; });
}

// Leaves out smaller and smaller parts of `list` while the schedule still fails.
template <typename Item>
void ShrinkList(Schedule& schedule, std::vector<Item> Schedule::*list, const std::string& checker,
                int64_t& runs) {
  for (size_t length = (schedule.*list).size(); length > 0; length /= 2) {
    for (size_t begin = 0; begin < (schedule.*list).size() && runs > 0;) {
      Schedule smaller = schedule;
      auto& items = smaller.*list;
      const size_t end = std::min(begin + length, items.size());
      items.erase(items.begin() + static_cast<ptrdiff_t>(begin),
                  items.begin() + static_cast<ptrdiff_t>(end));
      --runs;
      if (Fails(smaller, checker))
        schedule = std::move(smaller);
      else
        begin += length;
    }
  }
}

}  // namespace

SwarmReport RunSwarm(const SwarmOptions& options) {
  SwarmReport total;
  absl::Mutex mutex;  // guards total
  std::atomic<int64_t> next{0};
  const absl::Time start = RealClock().Now();
  const auto work = [&] {
    for (int64_t i = next++; i < options.schedules; i = next++) {
      const Schedule schedule = DrawSchedule(options.first_seed + static_cast<uint64_t>(i));
      const SimReport run = RunSchedule(schedule);
      absl::MutexLock lock(&mutex);
      Merge(schedule, run, total);
      if (static_cast<int64_t>(total.failures.size()) >= options.failures_max)
        next = options.schedules;
    }
  };
  std::vector<Thread> threads;
  for (int i = 1; i < options.threads; ++i) threads.emplace_back(absl::StrCat("swarm-", i), work);
  work();
  for (Thread& thread : threads) thread.Join();
  total.took = RealClock().Now() - start;
  std::sort(total.failures.begin(), total.failures.end(),
            [](const auto& a, const auto& b) { return a.seed < b.seed; });
  return total;
}

std::string ToText(const SwarmReport& report) {
  const double seconds = std::max(1e-9, absl::ToDoubleSeconds(report.took));
  std::string text = absl::StrFormat(
      "%d schedules in %.1f s (%.0f a second), %d events, %.0f s of virtual time\n"
      "%d scheduled requests, asked %d times in all: %d answered, %d cancelled, %d refused as "
      "late, "
      "%d failed and asked again among "
      "%d retries; %d faults\n%d sequences moved with %d tokens' KV and %d prefix blocks migrated "
      "by drains, %d "
      "fetched for prompts, %d read from storage (%d of them "
      "from host memory), %d reads given up; %d tokens of blocks that are not full fetched\n"
      "%d units of running sequences lent; %d loans moved, %d came home, %d were lost, %d were "
      "taken over; %d plans\n%d sequences kept the rest when they lost units, %d of them went on; "
      "%d "
      "rows computed, %d units regained, %d waits for storage\n"
      "%d schedules violated an invariant\n",
      report.schedules, seconds, static_cast<double>(report.schedules) / seconds, report.events,
      static_cast<double>(report.virtual_us) / 1e6, report.requests,
      report.clients.done + report.clients.cancelled + report.clients.refused +
          report.clients.failed,
      report.clients.done, report.clients.cancelled, report.clients.refused, report.clients.failed,
      report.clients.asked_again, report.faults, report.sequences_migrated, report.kv_tokens_moved,
      report.blocks_adopted, report.blocks_fetched, report.blocks_loaded,
      report.blocks_read_from_host, report.loads_given_up, report.part_tokens_fetched,
      report.units_lent, report.loans_moved, report.loans_home, report.loans_lost,
      report.loans_taken_over, report.loans_planned, report.rebuilds_begun, report.rebuilds_done,
      report.rows_rebuilt, report.units_regained, report.rebuild_reads, report.failures.size());
  for (const SwarmReport::Failure& failure : report.failures)
    absl::StrAppend(&text, "  seed ", failure.seed, " at ", failure.violation.at_us, " us, ",
                    failure.violation.checker, ": ", failure.violation.what, "\n");
  return text;
}

std::string CoverageTable(const Coverage& coverage) {
  std::string table = absl::StrFormat("%-15s", "fault");
  for (const absl::string_view state : kMachineStates)
    absl::StrAppendFormat(&table, " %16s", state);
  table += "\n";
  for (int kind = 0; kind < kFaultKinds; ++kind) {
    absl::StrAppendFormat(&table, "%-15s", FaultName(static_cast<FaultKind>(kind)));
    for (const int64_t count : coverage[kind]) {
      if (count == 0)
        absl::StrAppend(&table, std::string(16, ' '), "·");
      else
        absl::StrAppendFormat(&table, " %16d", count);
    }
    table += "\n";
  }
  return table;
}

Schedule Shrink(Schedule failing, const std::string& checker, int64_t runs) {
  ShrinkList(failing, &Schedule::faults, checker, runs);
  ShrinkList(failing, &Schedule::requests, checker, runs);
  ShrinkList(failing, &Schedule::faults, checker, runs);
  const auto attempt = [&](auto change) {
    if (--runs < 0) return;
    Schedule simpler = failing;
    change(simpler);
    if (Fails(simpler, checker)) failing = std::move(simpler);
  };
  for (size_t i = 0; i < failing.requests.size(); ++i) {
    attempt([i](Schedule& s) { s.requests[i].cancel_us = 0; });
    attempt([i](Schedule& s) { s.requests[i].max_tokens = (s.requests[i].max_tokens + 1) / 2; });
    attempt([i](Schedule& s) { s.requests[i].shared_tokens = 0; });
    attempt([i](Schedule& s) { s.requests[i].turn_tokens = 0; });
    attempt([i](Schedule& s) { s.requests[i].own_tokens = (s.requests[i].own_tokens + 1) / 2; });
  }
  for (size_t i = 0; i < failing.faults.size(); ++i)
    attempt([i](Schedule& s) { s.faults[i].lasts_us /= 2; });
  attempt([](Schedule& s) { s.topology.clock_skew_us = 0; });
  attempt([](Schedule& s) { s.topology.hop_us = 0; });
  attempt([](Schedule& s) { s.topology.eos_every = 0; });
  return failing;
}

}  // namespace tandem::sim
