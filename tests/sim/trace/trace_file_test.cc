// Goal: the reader takes both formats of public traces, plain and compressed; every line that
// cannot be is refused with its number and the field; a line without end takes bounded memory; the
// ceiling is what its definition says.
#include "sim/trace/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "sim/trace/arrivals.h"
#include "sim/trace/trace_prompt.h"
#include "sim/trace/trace_summary.h"

namespace tandem::sim {
namespace {

using ::testing::HasSubstr;

// A file of the test's own folder, removed at the end.
class TempFile {
 public:
  explicit TempFile(const std::string& text, bool compressed = false)
      : path_(absl::StrCat(::testing::TempDir(), "/trace_file_test_", getpid(), "_", next_++)) {
    if (!compressed) {
      std::ofstream(path_, std::ios::binary) << text;
      return;
    }
    gzFile file = gzopen(path_.c_str(), "wb");
    gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
  }
  ~TempFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  static inline int next_ = 0;
  const std::string path_;
};

absl::StatusOr<std::vector<TraceRequest>> ReadAll(WorkloadSource& source) {
  std::vector<TraceRequest> requests;
  while (true) {
    auto request = source.Next();
    if (!request.ok()) return request.status();
    if (!request->has_value()) return requests;
    requests.push_back(**std::move(request));
  }
}

absl::StatusOr<std::vector<TraceRequest>> ReadAll(const std::string& text,
                                                  bool compressed = false) {
  const TempFile file(text, compressed);
  auto source = OpenTrace(file.path());
  if (!source.ok()) return source.status();
  return ReadAll(**source);
}

// A source of requests in memory.
class ListSource final : public WorkloadSource {
 public:
  explicit ListSource(std::vector<TraceRequest> requests) : requests_(std::move(requests)) {}
  absl::StatusOr<std::optional<TraceRequest>> Next() override {
    if (next_ == requests_.size()) return std::optional<TraceRequest>();
    return std::optional<TraceRequest>(requests_[next_++]);
  }

 private:
  const std::vector<TraceRequest> requests_;
  size_t next_ = 0;
};

TEST(TraceFile, ReadsJsonLinesPlainAndCompressed) {
  const std::string text =
      "{\"timestamp\": 100, \"input_length\": 513, \"output_length\": 5, \"hash_ids\": [7, 8]}\n"
      "{\"timestamp\": 3100, \"input_length\": 512, \"output_length\": 0, \"hash_ids\": [7]}\r\n";
  for (const bool compressed : {false, true}) {
    const auto requests = ReadAll(text, compressed);
    ASSERT_TRUE(requests.ok()) << requests.status();
    ASSERT_EQ(requests->size(), 2);
    EXPECT_EQ((*requests)[0].at, absl::ZeroDuration()) << "arrivals count from the first";
    EXPECT_EQ((*requests)[0].prompt_tokens, 513);
    EXPECT_EQ((*requests)[0].blocks, (std::vector<uint64_t>{7, 8}));
    EXPECT_EQ((*requests)[1].at, absl::Seconds(3));
    EXPECT_EQ((*requests)[1].output_tokens, 1) << "an answer has at least a token";
    EXPECT_EQ((*requests)[1].line, 2);
  }
}

TEST(TraceFile, ReadsBothCsvHeaders) {
  const auto azure = ReadAll(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.1805900,396,109");
  ASSERT_TRUE(azure.ok()) << azure.status();
  ASSERT_EQ(azure->size(), 2);
  EXPECT_EQ((*azure)[1].at, absl::Milliseconds(500));
  EXPECT_EQ((*azure)[1].prompt_tokens, 396);
  EXPECT_EQ((*azure)[1].output_tokens, 109);
  EXPECT_TRUE((*azure)[1].blocks.empty());

  const auto sharegpt =
      ReadAll("arrival_ns,input_tokens,output_tokens\n1000,2358,531\n3000,10,2\n");
  ASSERT_TRUE(sharegpt.ok()) << sharegpt.status();
  EXPECT_EQ((*sharegpt)[1].at, absl::Microseconds(2));
}

TEST(TraceFile, RefusesLinesThatCannotBeByNumberAndField) {
  const std::string good =
      "{\"timestamp\": 5, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\n";
  const auto json = [](const char* time, const char* in, const char* out, const char* ids) {
    return absl::StrCat("{\"timestamp\": ", time, ", \"input_length\": ", in,
                        ", \"output_length\": ", out, ", \"hash_ids\": ", ids, "}\n");
  };
  const std::pair<std::string, const char*> cases[] = {
      {"not json\n", "line 2: expected a JSON object"},
      {"[]\n", "line 2: expected a JSON object"},
      {"{}\n", "line 2: \"timestamp\""},
      {json("6", "\"1\"", "1", "[1]"), "line 2: \"input_length\""},
      {json("6", "0", "1", "[]"), "line 2: input_length is 0, expected 1"},
      {json("6", "99999999999", "1", "[1]"), "line 2: input_length"},
      {json("6", "1", "-1", "[1]"), "line 2: output_length is -1"},
      {json("18446744073709551615", "1", "1", "[1]"), "line 2: \"timestamp\""},
      {json("6", "513", "1", "[1]"), "has 1 names, expected 2"},
      {json("6", "1", "1", "[-1]"), "a name in \"hash_ids\" is -1"},
      {json("6", "1", "1", "[281474976710656]"), "below 2^48"},
      {json("6", "1", "1", "[1.5]"), "a name in \"hash_ids\" is 1.5"},
      {json("4", "1", "1", "[1]"), "line 2: arrives at -1ms, before the line above"},
      {json("9000000000000000000", "1", "1", "[1]"),
       "line 2: arrives 2499999999999h59m59.995s after the line above it, expected at most 168h; "
       "times are milliseconds"},
      {json("604800006", "1", "1", "[1]"), "line 2: arrives 168h0.001s after the line above"},
      {"\n", "line 2: expected a JSON object"},
  };
  for (const auto& [line, what] : cases) {
    const auto requests = ReadAll(absl::StrCat(good, line));
    EXPECT_EQ(requests.status().code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(requests.status().message()), HasSubstr(what)) << line;
  }
  const std::string header = "arrival_ns,input_tokens,output_tokens\n";
  const std::pair<std::string, const char*> csv_cases[] = {
      {"1,2\n", "line 2: 2 fields, expected 3"},
      {"x,2,3\n", "line 2: the time is 'x'"},
      {"1,x,3\n", "line 2: the prompt's tokens are 'x'"},
      {"1,2,\n", "line 2: the answer's tokens are ''"},
      {"1,2,3\n604800000000002,2,3\n", "expected at most 168h; times are nanoseconds"}};
  for (const auto& [line, what] : csv_cases) {
    const auto requests = ReadAll(absl::StrCat(header, line));
    EXPECT_THAT(std::string(requests.status().message()), HasSubstr(what)) << line;
  }
  EXPECT_THAT(
      std::string(
          ReadAll("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n").status().message()),
      HasSubstr("the time is 'yesterday'"));
}

TEST(TraceFile, RefusesFilesOfNoKnownFormat) {
  EXPECT_EQ(OpenTrace("/nonexistent/trace").status().code(), absl::StatusCode::kNotFound);
  for (const char* text : {"", "time,in,out\n1,2,3\n", "hello"}) {
    const auto requests = ReadAll(text);
    EXPECT_EQ(requests.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(requests.status().message()), HasSubstr("line 1: expected JSON Lines"));
  }
}

TEST(TraceFile, BoundsALine) {
  const auto names = [](int64_t count) {
    std::string list = "1";
    for (int64_t i = 1; i < count; ++i) list += ",1";
    return list;
  };
  // The longest prompt fits into a line; a line of one byte more than the bound does not.
  const auto longest =
      ReadAll(absl::StrCat("{\"timestamp\":0,\"output_length\":1,\"input_length\":", kTokensMax,
                           ",\"hash_ids\":[", names(kTokensMax / kTraceBlockTokens), "]}"));
  ASSERT_TRUE(longest.ok()) << longest.status();
  EXPECT_EQ((*longest)[0].blocks.size(), kTokensMax / kTraceBlockTokens);
  const std::string line =
      "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}";
  const auto padded = [&](int64_t bytes) {
    return absl::StrCat(line, std::string(static_cast<size_t>(bytes) - line.size(), ' '));
  };
  EXPECT_TRUE(ReadAll(padded(kLineBytesMax)).ok());
  for (const bool compressed : {false, true})
    EXPECT_THAT(std::string(ReadAll(padded(kLineBytesMax + 1), compressed).status().message()),
                HasSubstr("line 1: longer than 1048576 bytes"));
}

TEST(TraceFile, RefusesZeroBytes) {
  const auto with_zero = [](const std::string& before, const std::string& behind) {
    return before + '\0' + behind;
  };
  const std::string header = "arrival_ns,input_tokens,output_tokens\n";
  for (const bool compressed : {false, true}) {
    const auto refused = [&](const std::string& text, const char* where) {
      EXPECT_THAT(std::string(ReadAll(text, compressed).status().message()),
                  HasSubstr(absl::StrCat(where, ": has a zero byte, expected text")));
    };
    refused(std::string(3 << 20, '\0'), "line 1");
    refused(with_zero("", header), "line 1");
    refused(header + with_zero("1000,2358,531", "\n3000,10,2\n"), "line 2");
    refused(header + with_zero("1000,2358,531", "7\n\n"), "line 2");
    refused(header + with_zero("1000,2358,531", ""), "line 2");
    refused(header + with_zero(std::string(5000, ' '), "\n"), "line 2");
  }
}

TEST(TraceFile, ReportsDamagedCompression) {
  std::string text;
  for (int i = 0; i < 2000; ++i)
    absl::StrAppend(&text, "{\"timestamp\":", i,
                    ",\"input_length\":1,\"output_length\":1,\"hash_ids\":[", i * 7919, "]}\n");
  const TempFile whole(text, /*compressed=*/true);
  std::ifstream file(whole.path(), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  bytes[bytes.size() / 2] ^= 0x55;
  const auto requests = ReadAll(bytes);
  EXPECT_FALSE(requests.ok());
}

TEST(Arrivals, SpreadsTheRequestsOfOneMoment) {
  const auto at = [](std::vector<int64_t> seconds, const ArrivalOptions& options) {
    std::vector<TraceRequest> requests;
    for (const int64_t s : seconds) {
      requests.push_back({.line = static_cast<int64_t>(requests.size()) + 1,
                          .at = absl::Seconds(s),
                          .prompt_tokens = 1,
                          .output_tokens = 1});
    }
    const auto adapted = AdaptArrivals(std::make_unique<ListSource>(requests), options);
    std::vector<double> result;
    const auto read = ReadAll(*adapted);
    for (const TraceRequest& request : *read) {
      EXPECT_EQ(request.line, static_cast<int64_t>(result.size()) + 1) << "order is kept";
      result.push_back(absl::ToDoubleSeconds(request.at));
    }
    return result;
  };
  using Times = std::vector<double>;
  EXPECT_EQ(at({0, 0, 0, 3, 9, 9}, {}), (Times{0, 1, 2, 3, 9, 12}));
  EXPECT_EQ(at({0, 0, 0, 3, 9, 9}, {.spread = false}), (Times{0, 0, 0, 3, 9, 9}));
  EXPECT_EQ(at({0, 0, 0, 3, 9, 9}, {.speed = 2}), (Times{0, 0.5, 1, 1.5, 4.5, 6}));
  EXPECT_EQ(at({0, 0, 0, 3, 9, 9}, {.requests_max = 4}), (Times{0, 1, 2, 3}));
  EXPECT_EQ(at({0, 0}, {}), (Times{0, 0}));
  EXPECT_EQ(at({}, {}), Times{});
}

TEST(TracePrompt, PromptsBeginAlikeExactlyAsTheTraceSays) {
  const auto prompt = [](std::vector<uint64_t> blocks, int64_t tokens, int64_t line = 1) {
    return MakePrompt({.line = line, .prompt_tokens = tokens, .blocks = std::move(blocks)});
  };
  const auto alike = [](const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
    return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  };
  const uint64_t big = kBlockNamesMax - 1;
  EXPECT_EQ(prompt({1, 2, 3}, 1100).size(), 1100);
  EXPECT_EQ(alike(prompt({1, 2, 3}, 1100), prompt({1, 2, 4}, 1100)), 1024);
  EXPECT_EQ(alike(prompt({1, 2}, 1024), prompt({1, 2, 3}, 1030)), 1024);
  EXPECT_LT(alike(prompt({big, 5}, 1024), prompt({big - (uint64_t{1} << 47), 5}, 1024)), 512);
  // Prompts of a trace without names share no block, not even with named ones.
  EXPECT_LT(alike(prompt({}, 2000, 1), prompt({}, 2000, 2)), 512);
  EXPECT_LT(alike(prompt({}, 2000, 7), prompt({7, 7, 7, 7}, 2000)), 512);
  for (const TokenId token : prompt({big, big}, 1024)) EXPECT_LT(token, kTraceVocabSize);
}

TEST(TraceSummary, CeilingIsWhatACacheWithoutLimitAnswers) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  std::vector<TraceRequest> requests;
  std::set<std::vector<uint64_t>> held;  // whole beginnings of earlier prompts
  int64_t ceiling = 0, tokens = 0;
  for (int i = 0; i < 300; ++i) {
    TraceRequest request{.line = i + 1, .prompt_tokens = 1 + static_cast<int64_t>(random() % 3000)};
    request.output_tokens = 1;
    tokens += request.prompt_tokens;
    // Names of chained blocks: a name stands for all that comes before it, too.
    uint64_t name = 0;
    for (int64_t begin = 0; begin < request.prompt_tokens; begin += kTraceBlockTokens) {
      name = (name * 3 + 1 + random() % 3) % kBlockNamesMax;
      request.blocks.push_back(name);
    }
    std::vector<uint64_t> beginning;
    int64_t hit = 0;
    for (const uint64_t block : request.blocks) {
      beginning.push_back(block);
      const auto end = static_cast<int64_t>(beginning.size()) * kTraceBlockTokens;
      if (held.count(beginning) > 0 && end < request.prompt_tokens) hit = end;
    }
    ceiling += hit;
    beginning.clear();
    for (const uint64_t block : request.blocks) {
      beginning.push_back(block);
      const auto end = static_cast<int64_t>(beginning.size()) * kTraceBlockTokens;
      if (end <= request.prompt_tokens) held.insert(beginning);
    }
    requests.push_back(std::move(request));
  }
  ListSource source(requests);
  const auto summary = Summarize(source);
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->ceiling_tokens, ceiling);
  EXPECT_EQ(summary->prompt_tokens, tokens);
  EXPECT_EQ(summary->requests, 300);
  ListSource empty({});
  EXPECT_EQ(Summarize(empty).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::sim
