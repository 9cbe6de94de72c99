// A cluster of a chaos run without processes. Thread safety: the test's thread.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/chaos/chaos_cluster.h"

namespace tandem::cli {

// Processes that ignore every signal but SIGKILL, and end when the test says so.
class FakeCluster final : public ChaosCluster {
 public:
  absl::StatusOr<bool> Ready() override { return ready; }
  std::vector<std::string> router_addresses() const override { return {}; }
  pid_t pid(int process) const override { return down.count(process) > 0 ? 0 : 100 + process; }
  void Signal(int process, int signal) override { signals.emplace_back(process, signal); }
  bool LimitMemory(int process, bool limited) override {
    limits.emplace_back(process, limited);
    return pid(process) != 0;
  }
  void Kill(int process) override { down.insert(process); }
  absl::Status StartAgain(int process) override {
    down.erase(process);
    started.push_back(process);
    return absl::OkStatus();
  }
  std::vector<Ended> TakeEnded() override { return std::exchange(ended, {}); }
  std::string Holdings() override { return holdings; }
  std::vector<int64_t> OpenFiles() const override { return open_files; }

  void End(int process, const std::string& how) {
    down.insert(process);
    ended.push_back({process, how});
  }

  bool ready = true;
  std::string holdings;
  std::vector<int64_t> open_files;
  std::set<int> down;
  std::vector<std::pair<int, int>> signals;
  std::vector<std::pair<int, bool>> limits;
  std::vector<int> started;
  std::vector<Ended> ended;
};

}  // namespace tandem::cli
