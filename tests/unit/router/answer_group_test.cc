// Goal: why an answer ended does not depend on how its node's messages fall: a stop string that is
// whole with the last token allowed ends the answer, not the length. And room that is used again
// sends nothing twice.
#include "router/front_end/answer_group.h"

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

class ByteDetokenizer final : public Detokenizer {
 public:
  std::string Append(TokenId token) override { return std::string(1, static_cast<char>(token)); }
  std::string Flush() override { return ""; }
};

// The reason that a client is told for the answer "abc" of three tokens at most, when its node said
// `reason`.
v1::FinishReason ReasonFor(const std::string& stop_string, request::FinishReason reason) {
  request::StopParams stop;
  stop.max_tokens = 3;
  if (!stop_string.empty()) stop.stop = {stop_string};
  AnswerGroup group({.sequences = 1, .n = 1}, [&] {
    return std::make_unique<AnswerAssembler>(std::make_unique<ByteDetokenizer>(),
                                             StopRules(stop, {}));
  });
  TokensReady tokens;
  for (int i = 0; i < 3; ++i) {
    v1::GeneratedToken token;
    token.set_token_id('a' + i);
    token.set_index(i);
    tokens.tokens.push_back(token);
  }
  v1::GenerateResponse part;
  EXPECT_TRUE(group.OnTokens(tokens, part));
  SequenceDone done;
  done.reason = reason;
  done.last = true;
  for (const v1::GenerateResponse& part : group.OnDone(done))
    if (part.has_finished()) return part.finished().reason();
  return v1::FINISH_REASON_UNSPECIFIED;
}

TEST(AnswerGroup, WhatAPartHeldBeforeIsNotSentAgain) {
  AnswerGroup group({.sequences = 1, .n = 1, .return_tokens = true, .echo = "echo "}, [] {
    return std::make_unique<AnswerAssembler>(std::make_unique<ByteDetokenizer>(),
                                             StopRules(request::StopParams{.max_tokens = 9}, {}));
  });
  v1::GenerateResponse part;
  part.mutable_finished()->set_stop_string("of another sequence");
  std::string text;
  for (int i = 0; i < 3; ++i) {
    TokensReady event;
    event.tokens.emplace_back().set_token_id('a' + i);
    event.tokens.back().set_index(i);
    ASSERT_TRUE(group.OnTokens(event, part));
    EXPECT_EQ(part.delta().tokens_size(), 1);
    text += part.delta().text();
  }
  EXPECT_EQ(text, "echo abc");
}

TEST(AnswerGroup, OfAPromptAloneNoTokenIsTold) {
  for (const auto reason : {request::FinishReason::kLength, request::FinishReason::kStop}) {
    AnswerGroup group({.return_tokens = true, .echo = "prompt", .prompt_only = true}, [] {
      return std::make_unique<AnswerAssembler>(
          std::make_unique<ByteDetokenizer>(),
          StopRules(request::StopParams{.max_tokens = 1, .stop = {"a"}}, {}));
    });
    TokensReady event;
    event.tokens.emplace_back().set_token_id('a');
    v1::GenerateResponse part;
    EXPECT_FALSE(group.OnTokens(event, part));
    EXPECT_FALSE(group.stopped(0));
    SequenceDone done;
    done.reason = reason;
    done.usage.set_output_tokens(1);
    const AnswerGroup::Parts parts = group.OnDone(done);
    ASSERT_EQ(parts.size(), 2u);
    EXPECT_EQ(parts[0].delta().text(), "prompt");
    EXPECT_EQ(parts[0].delta().tokens_size(), 0);
    EXPECT_EQ(parts[1].finished().reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(parts[1].finished().usage().output_tokens(), 0);
  }
}

TEST(AnswerGroup, AStopStringThatEndsWithTheLastTokenIsTheReason) {
  EXPECT_EQ(ReasonFor("bc", request::FinishReason::kLength), v1::FINISH_REASON_STOP);
  EXPECT_EQ(ReasonFor("bc", request::FinishReason::kStop), v1::FINISH_REASON_STOP);
  EXPECT_EQ(ReasonFor("bd", request::FinishReason::kLength), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(ReasonFor("", request::FinishReason::kLength), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(ReasonFor("bc", request::FinishReason::kAborted), v1::FINISH_REASON_ABORTED);
}

}  // namespace
}  // namespace tandem::router
