// `tandem sim`: implements NewSimCommand (cli/command_line/commands.h).
#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/files/named_file.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"
#include "common/runtime/clock.h"
#include "common/runtime/random.h"
#include "common/telemetry/log.h"
#include "sim/swarm.h"
#include "sim/timeline.h"

namespace tandem::cli {
namespace {

constexpr int64_t kShrinkRuns = 2000;
constexpr int64_t kSoakBatch = 1000;  // some seconds: between batches a soak looks at the clock
constexpr absl::Duration kSoakPrint = absl::Minutes(1);

absl::StatusOr<sim::Schedule> ReadSchedule(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadInput({"--schedule", path}));
  auto schedule = sim::ParseSchedule(text);
  if (!schedule.ok())
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", schedule.status().message()));
  return schedule;
}

class SimCommand final : public Command {
 public:
  SimCommand() : schema_("tandem sim", "Runs the cluster's state machines in virtual time.") {
    schema_.Add("seed", &seed_,
                "Seed of the schedule to run; with --swarm, of the first one. 0 draws one.");
    schema_.Add("swarm", &swarm_, "How many schedules to run, of consecutive seeds.", {.min = 0});
    schema_.Add("minutes", &minutes_, "Runs swarms of new seeds for this long.",
                {.min = 0, .unit = "minutes"});
    schema_.Add("threads", &threads_, "Threads of a swarm; 0 = one for each core.",
                {.min = 0, .max = 1024});
    schema_.Add("schedule", &schedule_,
                "A file with a printed schedule to run instead of a seed's; - = standard input.");
    schema_.Add("svg", &svg_,
                "A file for a picture of the run, with one row for each process; - = standard "
                "output, without the timeline.");
    schema_.AllowPositionals("shrink | trace FILE", 1);
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    std::vector<std::string> positionals;
    if (auto code = ParseArguments(schema_, args, env, &positionals)) return *code;
    if (!positionals.empty() && positionals[0] != "shrink") {
      ReportError(schema_, absl::InvalidArgumentError(absl::StrCat(
                               "'", positionals[0], "', expected shrink, trace or nothing")));
      return config::kExitUsage;
    }
    const bool many = minutes_ > 0 || swarm_ > 0;
    if (many && (!positionals.empty() || !schedule_.empty() || !svg_.empty())) {
      ReportError(schema_, absl::InvalidArgumentError(
                               "shrink, --schedule and --svg are of one run, expected none of them "
                               "with --swarm or --minutes"));
      return config::kExitUsage;
    }
    SetLogLevel(LogLevel::kError);
    if (minutes_ > 0) return Soak();
    if (swarm_ > 0) return Swarm();
    return RunOne(!positionals.empty());
  }

 private:
  int Threads() const {
    return threads_ > 0 ? threads_ : static_cast<int>(std::thread::hardware_concurrency());
  }
  uint64_t FirstSeed() const {
    return seed_ != 0 ? static_cast<uint64_t>(seed_) : NewSystemRandom()->Next() >> 20;
  }

  int Swarm() {
    const uint64_t first = FirstSeed();
    std::printf("seeds %llu and on\n", static_cast<unsigned long long>(first));
    const sim::SwarmReport report =
        sim::RunSwarm({.first_seed = first, .schedules = swarm_, .threads = Threads()});
    std::fputs(sim::ToText(report).c_str(), stdout);
    std::fputs(sim::CoverageTable(report.coverage).c_str(), stdout);
    return report.failures.empty() ? config::kExitOk : config::kExitFailed;
  }

  int Soak() {
    const absl::Time end = RealClock().Now() + absl::Minutes(1) * minutes_;
    absl::Time next_print = RealClock().Now();
    int64_t schedules = 0, events = 0;
    sim::Coverage coverage = {};
    while (RealClock().Now() < end) {
      const uint64_t first = FirstSeed();
      const sim::SwarmReport report = sim::RunSwarm(
          {.first_seed = first, .schedules = kSoakBatch, .threads = Threads(), .failures_max = 1});
      schedules += report.schedules;
      events += report.events;
      for (size_t i = 0; i < coverage.size(); ++i)
        for (size_t j = 0; j < coverage[i].size(); ++j) coverage[i][j] += report.coverage[i][j];
      if (!report.failures.empty() || RealClock().Now() >= next_print) {
        std::printf("seeds %llu and on: %s", static_cast<unsigned long long>(first),
                    sim::ToText(report).c_str());
        std::fflush(stdout);
        next_print = RealClock().Now() + kSoakPrint;
      }
      if (!report.failures.empty()) return config::kExitFailed;
      seed_ = 0;
    }
    std::printf("in all %lld schedules, %lld events\n%s", static_cast<long long>(schedules),
                static_cast<long long>(events), sim::CoverageTable(coverage).c_str());
    return config::kExitOk;
  }

  int RunOne(bool shrink) {
    sim::Schedule schedule = sim::DrawSchedule(FirstSeed());
    if (!schedule_.empty()) {
      auto read = ReadSchedule(schedule_);
      if (!read.ok()) return ReportError(schema_, read.status());
      schedule = *std::move(read);
    }
    sim::SimReport report = sim::RunSchedule(schedule, /*timeline=*/true);
    if (shrink && !report.violations.empty()) {
      schedule = sim::Shrink(schedule, report.violations.front().checker, kShrinkRuns);
      report = sim::RunSchedule(schedule, /*timeline=*/true);
    }
    const NamedFile svg = {"--svg", svg_};
    PrintReport(sim::TimelineText(schedule, report), {svg});
    if (!svg_.empty()) {
      const absl::Status status = WriteOutput(svg, sim::TimelineSvg(schedule, report));
      if (!status.ok()) return ReportError(schema_, status);
    }
    return report.violations.empty() ? config::kExitOk : config::kExitFailed;
  }

  config::Schema schema_;
  int64_t seed_ = 0;
  int64_t swarm_ = 0;
  int64_t minutes_ = 0;
  int32_t threads_ = 0;
  std::string schedule_;
  std::string svg_;
};

}  // namespace

std::unique_ptr<Command> NewSimCommand() { return std::make_unique<SimCommand>(); }

}  // namespace tandem::cli
