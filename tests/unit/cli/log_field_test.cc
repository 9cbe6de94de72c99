// Goal: `tandem up` takes a message for a message only where messages stand. What a client chose,
// such as a request id, is printed and does nothing else.
#include "cli/cluster/log_field.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace tandem::cli {
namespace {

constexpr char kStart[] = "2026-11-29T19:00:00.000Z INFO ";

// The line of a request whose client chose the id.
std::string Ended(const std::string& quoted_id) {
  return absl::StrCat(kStart, "router-0 request ended request_id=\"", quoted_id,
                      "\" front_end=http status=OK");
}

TEST(LogMessage, StandsBehindTheLevelAndTheProcess) {
  const std::string line = absl::StrCat(kStart, "router-0 router started grpc=127.0.0.1:1");
  EXPECT_TRUE(HasLogMessage(line, "router-0", "router started"));
  EXPECT_FALSE(HasLogMessage(line, "router-0", "routers started"));
  EXPECT_FALSE(HasLogMessage(line, "router-0", "started"));
  EXPECT_TRUE(HasLogMessage(absl::StrCat(kStart, "node started"), "decode-0", "node started"));
  EXPECT_FALSE(HasLogMessage(absl::StrCat(kStart, "node started2"), "decode-0", "node started"));
  for (const char* line : {"", "x", "two words", "no log line at all: node started "})
    EXPECT_FALSE(HasLogMessage(line, "decode-0", "node started")) << line;
  EXPECT_TRUE(HasLogMessage(R"({"message":"node started"})", "decode-0", "node started"));
  EXPECT_FALSE(HasLogMessage(R"({"message":"x","request_id":" node started "})", "decode-0",
                             "node started"));
}

TEST(LogMessage, IsNothingThatAClientChose) {
  for (const char* message : {"loading weights", "router started", "node started"}) {
    const std::string line =
        Ended(absl::StrCat("hidden ", message, "  percent=50 stage=x grpc=x model=x kv_blocks=1"));
    EXPECT_FALSE(HasLogMessage(line, "router-0", message)) << line;
    EXPECT_TRUE(HasLogMessage(line, "router-0", "request ended")) << line;
    EXPECT_EQ(BriefLine("router-0", line), absl::StrCat("[router-0] ", line));
    EXPECT_EQ(LogField(line, "percent"), "");
    EXPECT_EQ(LogField(line, "grpc"), "");
    EXPECT_EQ(LogField(line, "status"), "OK");
  }
  const std::string quotes = Ended(R"(a\" status=x \\)");
  EXPECT_EQ(LogField(quotes, "status"), "OK");
  EXPECT_EQ(LogField(quotes, "request_id"), R"(a" status=x \)");
  EXPECT_EQ(LogField(R"(a b k="open x=1)", "x"), "");
}

TEST(BriefLine, ShowsStartsWarningsAndWhatWasAskedFor) {
  const auto brief = [](const std::string& rest) {
    return BriefLine("decode-0", absl::StrCat("2026-11-29T19:00:00.000Z ", rest));
  };
  EXPECT_EQ(brief("INFO decode-0 node started kv_blocks=512"), "decode-0    ready, 512 KV blocks");
  EXPECT_EQ(brief("INFO decode-0 loading model path=/m"), "decode-0    loads /m");
  EXPECT_EQ(brief("INFO decode-0 node joined what=\" throughput \""), "");
  EXPECT_EQ(brief("WARNING decode-0 any"),
            "[decode-0] 2026-11-29T19:00:00.000Z WARNING decode-0 any");
}

}  // namespace
}  // namespace tandem::cli
