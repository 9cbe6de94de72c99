// Goal: a decode node that finds an answer complete which was delivered before it got the leg ends
// the request; only where a constraint could make it complete.
#include <gmock/gmock.h>

#include "tests/unit/router/request_fixture.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;

class WholeAnswerTest : public RequestTest {
 protected:
  // Delivers one token; the decode node is lost before the prompt's KV lies on it.
  void LoseAfterTheFirstToken(bool guided) {
    JoinAll();
    RequestInput input = CoreHarness::Input("r", 100, 10);
    if (guided)
      input.guided.Edit() = {.kind = request::GuidedParams::Kind::kRegex, .text = "[0-9]"};
    ASSERT_OK(h_.Submit(std::move(input)));
    d_ = h_.NextRun(kD0).leg();
    h_.Say(kD0, {Reserved(d_)});
    p_ = h_.NextPrefill(kP0).leg();
    h_.Say(kP0, {Generated(p_, {0}), PrefillFinished(p_, 100, 0)});
    h_.Lose(kD0);
    h_.ExpectAbort(kP0, p_.attempt());
    const v1::StartDecode again = h_.NextRun(kD1);
    EXPECT_EQ(again.sequence().delivered_tokens(), 1);
    d_ = again.leg();
  }
};

TEST_F(WholeAnswerTest, EndsWithTheTokensThatWereDelivered) {
  LoseAfterTheFirstToken(/*guided=*/true);
  h_.Say(kD1, {Reserved(d_)});
  p_ = h_.NextPrefill(kP0).leg();
  h_.Say(kD1, {LegFinished(d_, v1::FINISH_REASON_STOP, 1)});
  const ClientView& client = h_.client("r");
  ASSERT_TRUE(client.done.has_value()) << client.failure;
  EXPECT_EQ(client.done->reason, request::FinishReason::kStop);
  EXPECT_EQ(client.done->usage.output_tokens(), 1);
  EXPECT_THAT(client.tokens, ElementsAre(500));
  h_.ExpectAbort(kP0, p_.attempt());
  EXPECT_TRUE(h_.Quiet(kD1));
  h_.ExpectEmpty();
}

TEST_F(WholeAnswerTest, WithoutAConstraintThatIsAFailure) {
  LoseAfterTheFirstToken(/*guided=*/false);
  h_.Say(kD1, {Reserved(d_, 0, true), LegFinished(d_, v1::FINISH_REASON_STOP, 1)});
  EXPECT_FALSE(h_.client("r").done.has_value());
  h_.ExpectAbort(kD1, d_.attempt());
}

TEST_F(WholeAnswerTest, SoIsAnEndByLengthWithoutAToken) {
  LoseAfterTheFirstToken(/*guided=*/true);
  h_.Say(kD1, {Reserved(d_, 0, true), LegFinished(d_, v1::FINISH_REASON_LENGTH, 1)});
  EXPECT_FALSE(h_.client("r").done.has_value());
  h_.ExpectAbort(kD1, d_.attempt());
}

}  // namespace
}  // namespace tandem::router
