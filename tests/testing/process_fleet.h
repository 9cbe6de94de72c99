// A router and nodes as child processes of a test, each with flags of its own, on free ports of
// loopback. Thread safety: the test's thread uses it; any thread may use client().
#pragma once

#include <signal.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/client/client.h"
#include "tests/testing/program_run.h"

namespace tandem::testing {

class ProcessFleet {
 public:
  // Starts the router. Errors: kUnavailable with its log if it does not serve.
  static absl::StatusOr<std::unique_ptr<ProcessFleet>> Start(
      const std::vector<std::string>& router_flags) {
    std::vector<std::string> words = {"tandem-router", "--grpc=127.0.0.1:0", "--fleet=127.0.0.1:0",
                                      "--http=127.0.0.1:0", "--id=router"};
    words.insert(words.end(), router_flags.begin(), router_flags.end());
    auto router = RunningProgram::Start(words);
    if (!router.ok()) return router.status();
    auto fleet = std::unique_ptr<ProcessFleet>(new ProcessFleet());
    fleet->router_ = *std::move(router);
    const std::string grpc = fleet->router_->AwaitField("router started", "grpc");
    fleet->http_ = fleet->router_->AwaitField("router started", "http");
    fleet->address_ = fleet->router_->AwaitField("router started", "fleet");
    if (grpc.empty() || fleet->address_.empty()) return absl::UnavailableError(fleet->logs());
    fleet->client_ = cli::Client::Create(grpc);
    return fleet;
  }

  // Starts a node ("prefill" or "decode"), which joins later. `id`: not one of a running node.
  absl::Status StartNode(const std::string& kind, const std::string& id,
                         const std::vector<std::string>& flags) {
    std::vector<std::string> words = {absl::StrCat("tandem-", kind, "-node"), "--id=" + id,
                                      "--routers=" + address_};
    words.insert(words.end(), flags.begin(), flags.end());
    auto node = RunningProgram::Start(words);
    if (!node.ok()) return node.status();
    nodes_[id] = *std::move(node);
    return absl::OkStatus();
  }
  // Errors: kUnavailable with the log of a node that has not joined in time.
  absl::Status AwaitJoined(absl::Duration timeout = absl::Seconds(120)) {
    for (const auto& [id, node] : nodes_)
      if (node->AwaitLine("router_id=router", timeout).empty())
        return absl::UnavailableError(absl::StrCat(id, " has not joined:\n", node->log()));
    return absl::OkStatus();
  }
  // Sends SIGKILL and reaps. Errors: kNotFound without such a node.
  absl::Status Kill(const std::string& id) {
    const auto found = nodes_.find(id);
    if (found == nodes_.end()) return absl::NotFoundError(absl::StrCat("no node \"", id, "\""));
    found->second->Signal(SIGKILL);
    const std::string ended = found->second->AwaitEnd().value_or("goes on");
    return ended == "signal 9" ? absl::OkStatus()
                               : absl::InternalError(absl::StrCat(id, " ended with ", ended));
  }

  cli::Client& client() { return *client_; }
  // Where the router serves HTTP.
  const std::string& http_address() const { return http_; }
  // Of all processes.
  std::string logs() const {
    std::string all = absl::StrCat("router\n", router_->log());
    for (const auto& [id, node] : nodes_) absl::StrAppend(&all, id, "\n", node->log());
    return all;
  }

 private:
  ProcessFleet() = default;

  std::unique_ptr<RunningProgram> router_;
  std::unique_ptr<cli::Client> client_;
  std::string address_, http_;  // where nodes join; the router's HTTP
  std::map<std::string, std::unique_ptr<RunningProgram>> nodes_;
};

}  // namespace tandem::testing
