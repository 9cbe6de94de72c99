// Goal: a stream of server-sent events is read the same however its bytes were cut, and what
// servers write into events (text, usage, errors, the end) is seen, whatever the text holds.
#include "cli/bench_serve/event_stream.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <random>

#include "absl/strings/str_cat.h"
#include "cli/bench_serve/load_target.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EventStream, IsReadTheSameHoweverItIsCut) {
  const std::string stream =
      ": a comment\ndata: one\n\ndata:two\r\n\r\nevent: x\ndata: three\ndata: lines\n\n\n\ndata: "
      "[DONE]\n\ndata: never ended";
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    EventStreamReader reader;
    std::vector<std::string> events;
    for (size_t at = 0; at < stream.size();) {
      const size_t size = 1 + random() % 9;
      ASSERT_OK(reader.Append(absl::string_view(stream).substr(at, size),
                              [&](absl::string_view data) { events.emplace_back(data); }));
      at += size;
    }
    EXPECT_THAT(events, ElementsAre("one", "two", "three\nlines", "[DONE]"));
  }
}

TEST(EventStream, EndlessEventsAreRefused) {
  EventStreamReader reader;
  const std::string megabyte(1 << 20, 'x');
  absl::Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) {
    status = reader.Append(megabyte, [](absl::string_view) {});
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

TEST(AnswerEvent, SeesTextUsageErrorsAndTheEnd) {
  EXPECT_TRUE(ReadAnswerEvent("[DONE]").done);
  EXPECT_TRUE(ReadAnswerEvent(R"({"choices":[{"index":0,"text":"a"}],"usage":null})").has_text);
  EXPECT_TRUE(ReadAnswerEvent(R"({"choices": [{"text" : "a"}]})").has_text);
  EXPECT_TRUE(ReadAnswerEvent(R"({"choices":[{"delta":{"content":"a"}}]})").has_text);
  EXPECT_FALSE(ReadAnswerEvent(R"({"choices":[{"text":"","finish_reason":"stop"}]})").has_text);
  EXPECT_FALSE(ReadAnswerEvent(R"({"choices":[{"delta":{"content":null}}]})").has_text);

  const AnswerEvent usage = ReadAnswerEvent(
      R"({"choices":[],"service_tier":"default","usage":{"prompt_tokens":7,"completion_tokens":3,
          "prompt_tokens_details":{"cached_tokens":2}}})");
  ASSERT_TRUE(usage.usage.has_value());
  EXPECT_EQ(usage.usage->prompt_tokens, 7);
  EXPECT_EQ(usage.usage->output_tokens, 3);
  EXPECT_EQ(usage.usage->cached_tokens, 2);
  EXPECT_EQ(usage.usage->service_tier, "default");

  EXPECT_EQ(ReadAnswerEvent(R"({"error":{"message":"no node"}})").error, "no node");
  EXPECT_EQ(ReadAnswerEvent(R"({"error":"plain"})").error, "plain");
  EXPECT_THAT(ReadAnswerEvent(R"({"error":{"mess)").error, HasSubstr("not JSON"));
}

TEST(AnswerEvent, TextThatLooksLikeAKeyIsText) {
  const AnswerEvent event =
      ReadAnswerEvent(R"({"choices":[{"text":"\"error\":{\"usage\":{"}],"usage":null})");
  EXPECT_TRUE(event.has_text);
  EXPECT_EQ(event.error, "");
  EXPECT_FALSE(event.usage.has_value());
}

TEST(AnswerEvent, ErrorRepliesAreQuotedShortly) {
  EXPECT_EQ(ErrorMessageOf(R"({"error":{"message":"model: none"}})"), "model: none");
  EXPECT_EQ(ErrorMessageOf("<html>Bad gateway</html>"), "<html>Bad gateway</html>");
  EXPECT_LT(ErrorMessageOf(std::string(5000, 'x')).size(), 400u);
}

TEST(Target, AddressesAreReadAndRefusedInWords) {
  const auto text = [](const char* target) {
    const auto parsed = ParseTarget(target);
    return parsed.ok() ? parsed->text() : std::string(parsed.status().message());
  };
  EXPECT_EQ(text("http://a:80"), "http://a:80");
  EXPECT_EQ(text("a:80"), "http://a:80");
  EXPECT_EQ(text("8000"), "http://127.0.0.1:8000");
  EXPECT_EQ(text("grpc://50051"), "grpc://127.0.0.1:50051");
  EXPECT_EQ(text("http://a:80/v1/"), "http://a:80");
  EXPECT_EQ(text("http://a:80/proxy/v1"), "http://a:80/proxy");
  EXPECT_EQ(text("http://[::1]:80"), "http://[::1]:80");
  EXPECT_EQ(text("grpc://a:50051"), "grpc://a:50051");
  EXPECT_EQ(text("https://a:1/v1"), "https://a:1");
  EXPECT_THAT(text("http://a"), HasSubstr("no port"));
  EXPECT_THAT(text("a:70000"), HasSubstr("1 to 65535"));
  EXPECT_THAT(text(":80"), HasSubstr("no host"));
  EXPECT_THAT(text("grpc://a:1/x"), HasSubstr("has a path"));
  EXPECT_THAT(text("http://a:1/x y"), HasSubstr("spaces"));
}

}  // namespace
}  // namespace tandem::cli
