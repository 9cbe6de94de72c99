// Goal: each form of a batch's line becomes the request it says, with the command line's defaults
// below it; what is wrong is named by its field and never guessed; an earlier run's answers stay
// exactly as far as it is whole.
#include "cli/batch/batch_lines.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

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

TEST(BatchLine, APlainFormatDisplacesTheConstraintOfTheFlags) {
  v1::GenerateRequest defaults;
  defaults.mutable_guided()->set_regex("[0-9]+");
  const auto read = [&](const std::string& members) {
    return ParseBatchLine(absl::StrCat(R"({"prompt":"p")", members, "}"), 1, defaults)->request;
  };
  EXPECT_EQ(read("").guided().regex(), "[0-9]+");
  EXPECT_FALSE(read(R"(,"response_format":{"type":"text"})").has_guided());
  EXPECT_TRUE(read(R"(,"response_format":{"type":"json_object"})").guided().json_object());
}

TEST(BatchLine, ListsDisplaceThoseOfTheFlags) {
  v1::GenerateRequest defaults;
  defaults.add_bad_words("flag");
  defaults.mutable_stop()->add_stop("flag");
  defaults.mutable_stop()->add_stop_token_ids(1);
  const auto read = [&](const std::string& members) {
    return ParseBatchLine(absl::StrCat(R"({"prompt":"p")", members, "}"), 1, defaults)->request;
  };
  const v1::GenerateRequest own =
      read(R"(,"bad_words":["own"],"stop":"own","stop_token_ids":[2,3])");
  EXPECT_THAT(own.bad_words(), ElementsAre("own"));
  EXPECT_THAT(own.stop().stop(), ElementsAre("own"));
  EXPECT_THAT(own.stop().stop_token_ids(), ElementsAre(2, 3));
  const v1::GenerateRequest none = read(R"(,"bad_words":[],"stop":[],"stop_token_ids":[])");
  EXPECT_TRUE(none.bad_words().empty());
  EXPECT_TRUE(none.stop().stop().empty());
  EXPECT_TRUE(none.stop().stop_token_ids().empty());
  const v1::GenerateRequest other = read(R"(,"max_tokens":5)");
  EXPECT_THAT(other.bad_words(), ElementsAre("flag"));
  EXPECT_THAT(other.stop().stop_token_ids(), ElementsAre(1));
}

TEST(BatchLine, SeedsHaveAnySixtyFourBits) {
  v1::GenerateRequest defaults;
  defaults.mutable_sampling()->set_seed(7);
  const auto read = [&](const std::string& seed) {
    return ParseBatchLine(absl::StrCat(R"({"prompt":"p","seed":)", seed, "}"), 1, defaults)
        ->request.sampling();
  };
  EXPECT_EQ(read("5").seed(), 5u);
  EXPECT_EQ(read("18446744073709551615").seed(), ~uint64_t{0});
  EXPECT_EQ(read("-2").seed(), ~uint64_t{1});
  EXPECT_EQ(read("-9223372036854775808").seed(), uint64_t{1} << 63);
  EXPECT_EQ(read("null").seed(), 7u);
  EXPECT_FALSE(read("-1").has_seed()) << "the router draws one";
}

// As over HTTP: a line for another server's batch need not be rewritten.
TEST(BatchLine, WhatChangesNothingIsIgnored) {
  ASSERT_OK_AND_ASSIGN(const BatchRequest plain, ParseBatchLine(R"({"prompt":"a"})", 1, {}));
  ASSERT_OK_AND_ASSIGN(
      const BatchRequest more,
      ParseBatchLine(R"({"prompt":"a","user":"u","metadata":{"a":"b"},"reasoning_effort":"low",
                         "prediction":{"type":"content"},"tools":[],"logprobs":false,
                         "stream":true})",
                     1, {}));
  EXPECT_EQ(more.request.SerializeAsString(), plain.request.SerializeAsString());
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
      {R"({"prompt": "a", "temprature": 1})",
       "temprature: unknown field; nearest known: temperature"},
      {R"({"prompt": "a", "max_token": 2})", "max_token: unknown field; nearest known: max_tokens"},
      {R"({"prompt": "a", "frobnicate": 2})", "frobnicate: unknown field"},
      {R"({"prompt": "a", "repeat_penalty": 2})", "repeat_penalty: not served"},
      {R"({"prompt": "a", "tools": [{"type": "function"}]})", "tools: not served"},
      {R"({"prompt": "a", "logprobs": 2})", "logprobs: not served"},
      {R"({"prompt": "a", "web_search_options": {}})", "web_search_options: not served"},
      {R"({"prompt": "a", "max_tokens": "many"})", "max_tokens: expected an integer"},
      {R"({"prompt": "a", "max_completion_tokens": "many"})",
       "max_completion_tokens: expected an integer"},
      {R"({"prompt": "a", "max_tokens": 99999999999})",
       "max_tokens: expected an integer of at most 32 bits"},
      {R"({"prompt": "a", "temperature": {}})", "temperature: expected a number"},
      {R"({"prompt": "a", "ignore_eos": 5})", "ignore_eos: expected true or false"},
      {R"({"prompt": "a", "stop": 5})", "stop: expected a text or a list of texts"},
      {R"({"prompt": "a", "bad_words": 5})", "bad_words: expected a list of texts"},
      {R"({"prompt": "a", "stop_token_ids": ["a"]})",
       "stop_token_ids: expected a list of integers"},
      {R"({"prompt": "a", "logit_bias": 5})", "logit_bias: expected an object of numbers"},
      {R"({"prompt": "a", "seed": 1.5})", "seed: expected an integer"},
      {R"({"prompt": "a", "seed": 18446744073709551616})", "seed: expected an integer"},
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

TEST(BatchDigest, TellsWhatDecidesTheAnswer) {
  const auto digest = [](const char* line, const v1::GenerateRequest& defaults) {
    const auto batch = ParseBatchLine(line, 1, defaults);
    EXPECT_OK(batch.status());
    return DigestOf(batch->request);
  };
  const std::string first = digest(R"({"prompt":"a","logit_bias":{"3":1,"4":2}})", Defaults());
  EXPECT_EQ(digest(R"({"custom_id":"x","logit_bias":{"4":2,"3":1},"user":"u","priority":3,
                       "service_tier":"flex","deadline_s":5,"cache_salt":"s","prompt":"a"})",
                   Defaults()),
            first);
  EXPECT_NE(digest(R"({"prompt":"b","logit_bias":{"3":1,"4":2}})", Defaults()), first);
  EXPECT_NE(digest(R"({"prompt":"a","logit_bias":{"3":1,"4":3}})", Defaults()), first);
  v1::GenerateRequest other = Defaults();
  other.mutable_sampling()->set_temperature(0.6);
  EXPECT_NE(digest(R"({"prompt":"a","logit_bias":{"3":1,"4":2}})", other), first);
}

// What ReadBatchOutput says of `text`, and the answers that it writes.
struct ReadBack {
  absl::StatusOr<BatchOutput> output;
  std::string answers;
};
ReadBack Read(const std::string& text) {
  std::istringstream file(text);
  std::ostringstream answers;
  absl::StatusOr<BatchOutput> output = ReadBatchOutput(file, &answers);
  return {std::move(output), answers.str()};
}

TEST(BatchOutput, AnswersAreReadBack) {
  BatchAnswer answer;
  answer.request_digest = "0123";
  answer.text = "line\nbreak \xff" + std::string(100'000, 'x');
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

  const ReadBack read = Read(absl::StrCat(good, bad));
  ASSERT_OK(read.output.status());
  EXPECT_THAT(read.output->answered, ElementsAre(Pair("a", "0123")));
  EXPECT_EQ(read.answers, good);
  EXPECT_TRUE(read.output->must_be_repaired);
  EXPECT_FALSE(Read(good).output->must_be_repaired);
}

TEST(BatchOutput, ACutLastLineIsRepairedWhereverItWasCut) {
  BatchAnswer answer;
  answer.text = "text";
  const std::string first = FormatBatchAnswer("a", answer);
  const std::string second = FormatBatchAnswer("b", answer);
  for (size_t cut = 0; cut <= second.size(); ++cut) {
    const ReadBack read = Read(first + second.substr(0, cut));
    ASSERT_OK(read.output.status());
    // Only the newline missing: the answer is whole.
    const bool whole = cut + 1 >= second.size();
    EXPECT_EQ(read.output->answered.size(), whole ? 2u : 1u) << cut;
    EXPECT_EQ(read.answers, whole ? first + second : first) << cut;
    EXPECT_EQ(read.output->must_be_repaired, cut > 0 && cut < second.size()) << cut;
  }
}

TEST(BatchOutput, ForeignFilesAreRefusedByLine) {
  const std::string answer = "{\"custom_id\":\"a\",\"text\":\"\"}\n";
  for (const std::string foreign : {"notes\n{}", "notes", "{}", "{\"custom_id\": \"b",
                                    "{\"custom_id\":\"b\",\"prompt\":\"\"}"}) {
    const ReadBack read = Read(answer + foreign);
    EXPECT_EQ(read.output.status().code(), absl::StatusCode::kFailedPrecondition) << foreign;
    EXPECT_THAT(std::string(read.output.status().message()), HasSubstr("line 2 ")) << foreign;
  }
}

}  // namespace
}  // namespace tandem::cli
