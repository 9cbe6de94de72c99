// Goal: a node's threads stay on the processors it is given, its engine on one of them; processors
// that it cannot have are refused by name.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/runtime/processors.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

// Where the kernel lets each thread of a process run, by the thread's name.
std::multimap<std::string, std::string> ThreadPlaces(int pid) {
  std::multimap<std::string, std::string> places;
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"))) {
    std::ifstream comm(task.path() / "comm"), status(task.path() / "status");
    std::string name, line;
    std::getline(comm, name);
    while (std::getline(status, line)) {
      const std::string key = "Cpus_allowed_list:\t";
      if (absl::StartsWith(line, key)) places.emplace(name, line.substr(key.size()));
    }
  }
  return places;
}

// The same once the engine's thread, which names and places itself, is where it shall be.
std::multimap<std::string, std::string> PlacesWithEngineOn(const std::string& place, int pid) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  absl::Mutex mutex;
  const bool never = false;
  while (true) {
    auto places = ThreadPlaces(pid);
    const auto engine = places.find("engine");
    if ((engine != places.end() && engine->second == place) || absl::Now() > deadline) {
      return places;
    }
    absl::MutexLock lock(&mutex);
    mutex.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(10));
  }
}

TEST(PinnedNode, EveryThreadStaysWhereItIsPut) {
  const Processors mine = ReadProcessors();
  const std::string last = absl::StrCat(mine.usable.back().id);
  for (const std::string program : {"tandem-decode-node", "tandem-prefill-node"}) {
    ASSERT_OK_AND_ASSIGN(const auto node,
                         RunningProgram::Start({program, "--engine=hash", "--routers=127.0.0.1:1",
                                                "--cpus=" + last}));
    ASSERT_FALSE(node->AwaitLine("node started").empty()) << node->log();
    const auto places = PlacesWithEngineOn(last, node->pid());
    EXPECT_EQ(places.count("engine"), 1u);
    for (const auto& [thread, place] : places) EXPECT_EQ(place, last) << thread;
  }
}

TEST(PinnedNode, TheEngineHasAPlaceAmongAll) {
  const Processors mine = ReadProcessors();
  ASSERT_OK_AND_ASSIGN(const auto node,
                       RunningProgram::Start({"tandem-decode-node", "--engine=hash",
                                              "--routers=127.0.0.1:1", "--cpus=all"}));
  ASSERT_FALSE(node->AwaitLine("node started").empty()) << node->log();
  const std::string place = absl::StrCat(OneOfEachCore(mine).front().id);
  const auto places = PlacesWithEngineOn(place, node->pid());
  const auto engine = places.find("engine");
  ASSERT_NE(engine, places.end());
  EXPECT_EQ(engine->second, place);
}

TEST(PinnedNode, ProcessorsItCannotHaveAreRefused) {
  for (const auto& [cpus, named] : std::vector<std::pair<std::string, std::string>>{
           {"8191", "processor 8191 of '8191' is not one that this process may use"},
           {"some", "'some' of 'some' is neither a processor nor a range"}}) {
    const ProgramRun run = RunProgram({"tandem-decode-node", "--engine=hash", "--cpus=" + cpus});
    EXPECT_NE(run.exit_code, 0);
    EXPECT_THAT(run.output, HasSubstr(named));
  }
}

}  // namespace
}  // namespace tandem::testing
