// A cluster of real processes for a test: `tandem up` as a child process, on free ports.
// Thread safety: the test's thread uses it; any thread may call Generate.
#pragma once

#include <signal.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cli/client/client.h"
#include "cli/cluster/child_process.h"

namespace tandem::testing {

// The answer to one request, without times.
struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  v1::Started started;
  v1::Finished finished;
  absl::Status status;
};

// `on_part`, if there is one, sees the answer so far after each of its parts.
inline Answer Collect(cli::Client& client, const v1::GenerateRequest& request,
                      const std::function<void(const Answer&)>& on_part = nullptr) {
  Answer answer;
  bool finished = false;
  answer.status = client.Generate(request, [&](const v1::GenerateResponse& part) {
    if (part.has_started()) answer.started = part.started();
    if (part.has_finished()) {
      answer.finished = part.finished();
      finished = true;
    }
    answer.text += part.delta().text();
    for (const v1::GeneratedToken& token : part.delta().tokens()) {
      if (token.index() != static_cast<int>(answer.tokens.size())) {
        answer.status = absl::DataLossError(absl::StrCat("token index ", token.index(), " after ",
                                                         answer.tokens.size(), " tokens"));
      }
      answer.tokens.push_back(token.token_id());
      answer.logprobs.push_back(token.logprob());
    }
    if (on_part) on_part(answer);
    return true;
  });
  if (answer.status.ok() && !finished) answer.status = absl::DataLossError("no Finished message");
  return answer;
}

class TestCluster {
 public:
  // `flags` of `tandem up`. Waits until it is ready; an error carries its last log lines.
  static absl::StatusOr<std::unique_ptr<TestCluster>> Start(std::vector<std::string> flags) {
    auto cluster = std::unique_ptr<TestCluster>(new TestCluster());
    flags.insert(flags.begin(), {"up", "--grpc=127.0.0.1:0", "--http=0"});
    auto child = cli::ChildProcess::Start(
        "tandem", absl::StrCat(TANDEM_BINARY_DIR, "/bin/tandem"), flags,
        [raw = cluster.get()](const std::string& line) { raw->OnLine(line); });
    if (!child.ok()) return child.status();
    cluster->child_ = *std::move(child);
    absl::MutexLock lock(&cluster->mutex_);
    const auto settled = [](TestCluster* c) { return !c->address_.empty() || c->failed_; };
    cluster->mutex_.AwaitWithTimeout(absl::Condition(+settled, cluster.get()), absl::Seconds(180));
    if (cluster->address_.empty()) {
      return absl::UnavailableError(absl::StrCat("no cluster: ", cluster->log_tail_));
    }
    cluster->client_ = cli::Client::Create(cluster->address_);
    return cluster;
  }

  ~TestCluster() {
    if (child_ != nullptr) Stop();
  }

  cli::Client& client() { return *client_; }
  const std::string& address() const { return address_; }
  // Where the first router serves HTTP.
  const std::string& http_address() const { return http_address_; }
  // Of the first router; empty without --admin.
  const std::string& admin_address() const { return admin_address_; }
  // The pid in "node started"-style lines is not logged; processes are found by name under /proc by
  // tests that need it.
  pid_t pid() const { return child_->pid(); }

  Answer Generate(const v1::GenerateRequest& request) { return Collect(*client_, request); }

  // Drains the cluster; returns the exit code of the process.
  std::string Stop() {
    child_->Signal(SIGTERM);
    std::string ended = "not within its time";
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (absl::Now() < deadline) {
      if (auto how = child_->Ended(); how.has_value()) {
        ended = *how;
        break;
      }
      absl::MutexLock lock(&mutex_);
      bool never = false;
      mutex_.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(10));
    }
    child_.reset();
    return ended;
  }

  // All log lines so far that contain `text`. Lines of the cluster's processes come some time after
  // what they tell of, the line that it is ready included: await a line that is due.
  std::vector<std::string> LinesWith(const std::string& text) const {
    absl::MutexLock lock(&mutex_);
    return Find(text);
  }
  // As LinesWith, once there are `count` such lines; fewer when they do not come in time.
  std::vector<std::string> AwaitLinesWith(const std::string& text, size_t count = 1) const {
    const auto enough = [&] { return Find(text).size() >= count; };
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(30));
    return Find(text);
  }

 private:
  TestCluster() = default;

  std::vector<std::string> Find(const std::string& text) const {
    std::vector<std::string> found;
    for (const std::string& line : lines_) {
      if (absl::StrContains(line, text)) found.push_back(line);
    }
    return found;
  }
  void OnLine(const std::string& line) {
    absl::MutexLock lock(&mutex_);
    lines_.push_back(line);
    absl::StrAppend(&log_tail_, line, "\n");
    if (log_tail_.size() > 4000) log_tail_.erase(0, log_tail_.size() - 4000);
    if (absl::StartsWith(line, "ready: ")) {
      const auto first_after = [&line](const std::string& marker) {
        const size_t begin = line.find(marker) + marker.size();
        return line.substr(begin, line.find_first_of(",;", begin) - begin);
      };
      http_address_ = first_after("HTTP on ");
      if (absl::StrContains(line, "operators on ")) admin_address_ = first_after("operators on ");
      address_ = first_after("gRPC on ");
    } else if (absl::StartsWith(line, "tandem up: ")) {
      failed_ = true;
    }
  }

  std::unique_ptr<cli::ChildProcess> child_;
  std::unique_ptr<cli::Client> client_;
  mutable absl::Mutex mutex_;
  std::string address_, http_address_, admin_address_;
  std::string log_tail_;
  std::vector<std::string> lines_;
  bool failed_ = false;
};

}  // namespace tandem::testing
