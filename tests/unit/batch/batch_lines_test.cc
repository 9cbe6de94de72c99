// Goal: each form of a batch's line becomes the request it says, with the command line's defaults
// below it; what is wrong is named by its field and never guessed; an earlier run's answers stay
// exactly as far as it is whole.
#include "cli/batch/batch_lines.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::GenerateRequest Defaults() {
  v1::GenerateRequest defaults;
  defaults.mutable_sampling()->set_temperature(0.5);
  defaults.mutable_stop()->set_max_tokens(99);
  defaults.mutable_stop()->add_stop("default");
  return defaults;
}

TEST(BatchLine, OpenAisFormIsRead) {
  ASSERT_OK_AND_ASSIGN(
      const BatchRequest batch,
      ParseBatchLine(
          R"({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body":
              {"model": "m", "messages": [{"role": "developer", "content": "s"},
                                          {"role": "user", "content": [{"type": "text", "text": "u"},
                                                                       {"type": "text", "text": "v"}]}],
               "max_completion_tokens": 7, "temperature": 0, "seed": 5, "stop": "x",
               "logit_bias": {"3": -1.5}, "user": "ignored", "service_tier": "flex", "stream": null}})",
          4, Defaults()));
  EXPECT_EQ(batch.custom_id, "a");
  ASSERT_EQ(batch.request.chat().messages_size(), 2);
  EXPECT_EQ(batch.request.chat().messages(0).role(), "system");
  EXPECT_EQ(batch.request.chat().messages(0).content(), "s");
  EXPECT_EQ(batch.request.chat().messages(1).content(), "u\nv");
  EXPECT_EQ(batch.request.model(), "m");
  EXPECT_EQ(batch.request.service_tier(), "flex");
  EXPECT_EQ(batch.request.stop().max_tokens(), 7);
  EXPECT_THAT(batch.request.stop().stop(), ElementsAre("x"));
  EXPECT_EQ(batch.request.sampling().temperature(), 0);
  EXPECT_EQ(batch.request.sampling().seed(), 5u);
  EXPECT_FLOAT_EQ(batch.request.sampling().logit_bias().at(3), -1.5F);
}

TEST(BatchLine, TheSimpleFormKeepsDefaults) {
  ASSERT_OK_AND_ASSIGN(const BatchRequest text,
                       ParseBatchLine(R"({"prompt": "hello"})", 12, Defaults()));
  EXPECT_EQ(text.custom_id, "line-12");
  EXPECT_EQ(text.request.text(), "hello");
  EXPECT_EQ(text.request.stop().max_tokens(), 99);
  EXPECT_DOUBLE_EQ(text.request.sampling().temperature(), 0.5);
  EXPECT_THAT(text.request.stop().stop(), ElementsAre("default"));
  ASSERT_OK_AND_ASSIGN(const BatchRequest ids,
                       ParseBatchLine(R"({"custom_id": "i", "prompt": [1, 2]})", 1, Defaults()));
  EXPECT_EQ(ids.custom_id, "i");
  EXPECT_THAT(ids.request.tokens().ids(), ElementsAre(1, 2));
}

TEST(BatchLine, ResponseFormatsGuideTheAnswer) {
  ASSERT_OK_AND_ASSIGN(const BatchRequest schema,
                       ParseBatchLine(R"({"prompt": "p", "response_format": {"type": "json_schema",
                         "json_schema": {"schema": {"type": "null"}}}})",
                                      1, {}));
  EXPECT_EQ(schema.request.guided().json_schema(), R"({"type":"null"})");
  ASSERT_OK_AND_ASSIGN(
      const BatchRequest object,
      ParseBatchLine(R"({"prompt": "p", "response_format": {"type": "json_object"}})", 1, {}));
  EXPECT_TRUE(object.request.guided().json_object());
}

TEST(BatchLine, WhatIsWrongIsNamed) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"nonsense", "body"},
      {"[]", "object"},
      {"{}", "one of prompt and messages"},
      {R"({"prompt": "a", "messages": [{"role": "user", "content": "b"}]})", "one of prompt"},
      {R"({"prompt": ["a", "b"]})", "prompt: "},
      {R"({"prompt": [-1]})", "prompt: "},
      {R"({"prompt": 5})", "prompt: "},
      {R"({"messages": "hi"})", "messages: "},
      {R"({"messages": [{"role": "user"}]})", "messages[0]: "},
      {R"({"messages": [{"role": "user", "content": []}]})", "messages[0]: "},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})",
       "messages[0]: "},
      {R"({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]})",
       "messages[0]: "},
      {R"({"prompt": "a", "n": 2})", "n: expected 1"},
      {R"({"prompt": "a", "temprature": 1})", "temprature: not served"},
      {R"({"prompt": "a", "tools": []})", "tools: not served"},
      {R"({"prompt": "a", "max_tokens": "many"})", "max_tokens"},
      {R"({"prompt": "a", "temperature": {}})", "temperature"},
      {R"({"prompt": "a", "seed": -1})", "seed"},
      {R"({"prompt": "a", "response_format": {"type": "xml"}})", "response_format: "},
      {R"({"prompt": "a", "custom_id": 5})", "custom_id: "},
      {R"({"body": 5})", "body: "},
      {R"({"url": "/v1/embeddings", "body": {"prompt": "a"}})", "url: "},
      {R"({"prompt": "a", "body": {"prompt": "a"}})", "prompt: "},
  };
  for (const auto& [line, named] : cases) {
    const auto refused = ParseBatchLine(line, 1, Defaults());
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(named)) << line;
  }
  EXPECT_EQ(BatchLineName(R"({"custom_id": "x", "prompt": 5})", 3), "x");
  EXPECT_EQ(BatchLineName("nonsense", 3), "line-3");
}

TEST(BatchLine, AnyBytesAreReadOrRefused) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  const std::string whole =
      R"({"custom_id": "a", "body": {"prompt": "hello", "stop": ["x"], "seed": 5}})";
  for (int i = 0; i < 5000; ++i) {
    std::string line = whole;
    for (uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
      line[random() % line.size()] = static_cast<char>(random());
    }
    const auto batch = ParseBatchLine(line, 1, Defaults());
    EXPECT_TRUE(batch.ok() || absl::IsInvalidArgument(batch.status())) << batch.status();
    EXPECT_EQ(FormatBatchError(BatchLineName(line, 1), 1, batch.status()).back(), '\n');
  }
}

TEST(BatchOutput, AnswersAreReadBack) {
  BatchAnswer answer;
  answer.text = "line\nbreak \xff";
  answer.tokens = {5, 6};
  answer.finished.set_reason(v1::FINISH_REASON_LENGTH);
  answer.finished.mutable_usage()->set_prompt_tokens(3);
  answer.finished.mutable_usage()->set_output_tokens(2);
  const std::string good = FormatBatchAnswer("a", answer);
  const std::string bad = FormatBatchError("b", 2, absl::UnavailableError("no node"));
  EXPECT_EQ(std::count(good.begin(), good.end(), '\n'), 1);
  const auto json = nlohmann::json::parse(good);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["tokens"], nlohmann::json({5, 6}));
  EXPECT_EQ(json["usage"]["total_tokens"], 5);
  EXPECT_EQ(nlohmann::json::parse(bad)["error"]["code"], "UNAVAILABLE");

  ASSERT_OK_AND_ASSIGN(const BatchOutput output, ReadBatchOutput(absl::StrCat(good, bad)));
  EXPECT_THAT(output.answered, ElementsAre("a"));
  EXPECT_EQ(output.answers, good);
  EXPECT_EQ(output.dropped, 1);
}

TEST(BatchOutput, ACutLastLineIsRepairedWhereverItWasCut) {
  BatchAnswer answer;
  answer.text = "text";
  const std::string first = FormatBatchAnswer("a", answer);
  const std::string second = FormatBatchAnswer("b", answer);
  for (size_t cut = 0; cut <= second.size(); ++cut) {
    ASSERT_OK_AND_ASSIGN(const BatchOutput output,
                         ReadBatchOutput(absl::StrCat(first, second.substr(0, cut))));
    // Only the newline missing: the answer is whole.
    const bool whole = cut + 1 >= second.size();
    EXPECT_EQ(output.answered.size(), whole ? 2u : 1u) << cut;
    EXPECT_EQ(output.answers, whole ? first + second : first) << cut;
  }
}

TEST(BatchOutput, ForeignFilesAreRefusedByLine) {
  const auto foreign = ReadBatchOutput("{\"custom_id\":\"a\",\"text\":\"\"}\nnotes\n{}");
  EXPECT_EQ(foreign.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(foreign.status().message()), HasSubstr("line 2 "));
}

}  // namespace
}  // namespace tandem::cli
