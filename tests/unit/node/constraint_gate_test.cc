// Goal: a command whose constraint is not compiled waits, with the later commands of its leg, in
// their order; other legs' commands pass at once; nothing of a lost router comes later.
#include "common/node/constraint_gate.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"

namespace tandem::node {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::shared_ptr<const guided::Vocabulary> Bytes() {
  std::vector<std::string> tokens;
  for (int i = 0; i < 256; ++i) tokens.push_back(std::string(1, static_cast<char>(i)));
  return std::make_shared<const guided::Vocabulary>(std::move(tokens));
}

class ConstraintGateTest : public ::testing::Test {
 protected:
  static v1::NodeCommand Start(uint64_t number, const std::string& regex) {
    v1::NodeCommand command;
    v1::StartDecode& start = *command.mutable_start_decode();
    start.mutable_leg()->set_number(number);
    if (!regex.empty()) start.mutable_sequence()->mutable_guided()->set_regex(regex);
    return command;
  }
  static v1::NodeCommand Abort(uint64_t number) {
    v1::NodeCommand command;
    command.mutable_abort()->mutable_leg()->set_number(number);
    return command;
  }
  // As the node does: what the gate lets pass goes on after Filter.
  void Send(RouterKey router, std::vector<v1::NodeCommand> commands) {
    v1::RouterMessage message;
    for (v1::NodeCommand& command : commands) *message.add_commands() = std::move(command);
    gate_.Filter(router, message);
    Take(router, message);
  }
  void Take(RouterKey router, const v1::RouterMessage& message) {
    absl::MutexLock lock(&mutex_);
    for (const v1::NodeCommand& command : message.commands()) {
      const bool start = command.has_start_decode();
      const uint64_t number =
          start ? command.start_decode().leg().number() : command.abort().leg().number();
      taken_[number].push_back(absl::StrCat(start ? "start " : "abort ", router.value()));
      ++count_;
    }
  }
  void Await(int commands) {
    absl::MutexLock lock(&mutex_);
    const auto all = [&] { return count_ >= commands; };
    mutex_.Await(absl::Condition(&all));
  }
  std::vector<std::string> Taken(uint64_t number) {
    absl::MutexLock lock(&mutex_);
    return taken_[number];
  }

  const RouterKey one_{1}, two_{2};
  absl::Mutex mutex_;
  std::map<uint64_t, std::vector<std::string>> taken_;
  int count_ = 0;
  std::shared_ptr<guided::ConstraintCache> cache_ =
      std::make_shared<guided::ConstraintCache>(Bytes());
  ConstraintGate gate_{
      cache_, [this](RouterKey router, v1::RouterMessage message) { Take(router, message); }};
};

TEST_F(ConstraintGateTest, ALegsCommandsKeepTheirOrder) {
  constexpr uint64_t kLegs = 200;
  for (uint64_t leg = 1; leg <= kLegs; ++leg) {
    Send(one_, {Start(leg, absl::StrCat("[a-f]{", leg, "}x")), Start(leg + kLegs, ""), Abort(leg)});
    EXPECT_THAT(Taken(leg + kLegs), ElementsAre("start 1")) << "no constraint, no wait";
  }
  Await(3 * kLegs);
  for (uint64_t leg = 1; leg <= kLegs; ++leg)
    EXPECT_THAT(Taken(leg), ElementsAre("start 1", "abort 1"));
}

TEST_F(ConstraintGateTest, WhatIsCompiledPassesAtOnce) {
  Send(one_, {Start(1, "[0-9]+"), Start(2, "no [end")});
  Await(2);
  Send(two_, {Start(3, "[0-9]+")});
  EXPECT_THAT(Taken(3), ElementsAre("start 2"));
  Send(two_, {Start(4, "no [end")});
  EXPECT_THAT(Taken(4), ElementsAre("start 2")) << "an error is a result, too";
}

TEST_F(ConstraintGateTest, NothingOfALostRouterComesLater) {
  // Something to compile first, so that the next one waits.
  Send(one_, {Start(1, "(a|b)*a(a|b){12}")});
  Send(two_, {Start(2, "[0-9]{3}")});
  gate_.OnRouterLost(two_);
  const size_t before = Taken(2).size();  // it may have gone on before the router was lost
  Send(one_, {Start(3, "[0-9]{3}")});
  Await(2);
  EXPECT_EQ(Taken(2).size(), before);
}

}  // namespace
}  // namespace tandem::node
