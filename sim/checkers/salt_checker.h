// Checks that a node reuses a prefix only when a sequence of the same cache salt left it: compares
// what the node reports as cached with everything that it ever received. Thread safety: none; the
// simulation's thread. Owner: a SimNode.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "sim/world/violations.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::sim {

class SaltChecker {
 public:
  // `whole_sequences`: prompt and answer of each sequence of a request id, since generated tokens
  // are cached too.
  SaltChecker(RunLog& log, std::string node,
              std::function<std::vector<std::vector<TokenId>>(const std::string& request_id)>
                  whole_sequences)
      : log_(log), node_(std::move(node)), whole_sequences_(std::move(whole_sequences)) {}

  // Before the command reaches the core.
  void OnCommand(const v1::NodeCommand& command);
  // What the node answers.
  void OnEvent(const v1::NodeEvent& event);
  // This node may receive prefix blocks from the node of `from`.
  void OnAdopt(const SaltChecker& from);

 private:
  void Check(const v1::Leg& leg, int64_t cached_tokens);

  RunLog& log_;
  const std::string node_;
  const std::function<std::vector<std::vector<TokenId>>(const std::string&)> whole_sequences_;
  // Requests that this process received, by salt, and how often.
  std::map<std::string, std::map<std::string, int>> served_;
  // What the last command said of each sequence. A client may use its request id again.
  struct Given {
    std::string salt;
    std::vector<TokenId> prompt;
  };
  std::map<std::string, std::map<int32_t, Given>> given_;
};

}  // namespace tandem::sim
