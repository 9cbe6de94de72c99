// Goal: every sampling and stop parameter is read from HTTP bodies under each of its names, lands
// in the field of the request that gRPC clients set, and is refused by name where its type is
// wrong.
#include "router/front_end/http/sampling_fields.h"

#include <cstdio>

#include "common/rpc/convert.h"
#include "router/front_end/json_body.h"
#include "tests/testing/parameter_samples.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::testing::StartsWith;

constexpr request::Api kApis[] = {request::kCompletions, request::kChat, request::kOllama,
                                  request::kMessages};

// Reads a body of one field; strict, so that a field that is not read is a fault.
absl::StatusOr<v1::GenerateRequest> Read(request::Api api, absl::string_view name,
                                         const std::string& value) {
  const absl::StatusOr<Json> body = ParseJsonBody(absl::StrCat("{\"", name, "\":", value, "}"));
  if (!body.ok()) return body.status();
  Fields fields(*body);
  v1::GenerateRequest request;
  ReadSamplingFields(fields, api, request);
  const absl::Status status = fields.Finish(/*strict=*/true);
  if (!status.ok()) return status;
  return request;
}

// Calls `visit(row, name)` with every name that ReadSamplingFields knows in `api`.
template <typename Visitor>
void ForEachName(request::Api api, Visitor&& visit) {
  request::ForEachParameter([&](const auto& row) {
    if (row.about.apis & api) visit(row, row.about.name);
    for (const request::Alias& alias : row.about.aliases) {
      if ((alias.apis & api) && !alias.own_reader) visit(row, alias.name);
    }
  });
}

TEST(SamplingFields, EveryNameSetsItsParameter) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  testing::Generator random(seed);
  int names = 0;
  for (int round = 0; round < 20; ++round) {
    for (const request::Api api : kApis) {
      ForEachName(api, [&](const auto& row, absl::string_view name) {
        using Row = std::decay_t<decltype(row)>;
        typename Row::value_type value;
        testing::Sample(row.about, random, &value);
        ASSERT_OK_AND_ASSIGN(const auto request, Read(api, name, testing::JsonOf(value)));
        ++names;
        if constexpr (std::is_same_v<decltype(value), std::vector<std::vector<TokenId>>>) {
          EXPECT_THAT(request.bad_words(), ::testing::ElementsAre("bad word"));
        } else {
          const auto sampling = rpc::FromWire(request.sampling());
          const auto stop = rpc::FromWire(request.stop());
          EXPECT_EQ(testing::PartOf(row, sampling, stop).*row.member, value) << name;
        }
      });
    }
  }
  EXPECT_GE(names, 20 * 35);
}

TEST(SamplingFields, AWrongTypeIsRefusedByName) {
  for (const request::Api api : kApis) {
    ForEachName(api, [&](const auto&, absl::string_view name) {
      for (const char* wrong : {"5.25e300", "\"7\"", "{\"a\":\"b\"}", "[[]]", "true"}) {
        const absl::StatusOr<v1::GenerateRequest> read = Read(api, name, wrong);
        // Each of them is right for one type at most.
        if (read.ok()) continue;
        EXPECT_THAT(read, testing::StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(name)))
            << wrong;
      }
      EXPECT_FALSE(Read(api, name, "[[]]").ok()) << name;
      EXPECT_FALSE(Read(api, name, "{\"a\":\"b\"}").ok()) << name;
    });
  }
}

TEST(SamplingFields, NullIsAbsent) {
  const v1::GenerateRequest nothing = *Read(request::kChat, "temperature", "null");
  for (const request::Api api : kApis) {
    ForEachName(api, [&](const auto&, absl::string_view name) {
      ASSERT_OK_AND_ASSIGN(const auto request, Read(api, name, "null"));
      EXPECT_EQ(request.SerializeAsString(), nothing.SerializeAsString()) << name;
    });
  }
}

TEST(SamplingFields, TheNewerNameWins) {
  for (const char* text : {R"({"max_completion_tokens":3,"max_tokens":5})",
                           R"({"max_tokens":5,"max_completion_tokens":3})"}) {
    ASSERT_OK_AND_ASSIGN(const Json body, ParseJsonBody(text));
    Fields fields(body);
    v1::GenerateRequest request;
    ReadSamplingFields(fields, request::kChat, request);
    EXPECT_OK(fields.Finish(/*strict=*/true));
    EXPECT_EQ(request.stop().max_tokens(), 3);
  }
  EXPECT_THAT(Read(request::kCompletions, "max_completion_tokens", "3"),
              testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                StartsWith("max_completion_tokens: unknown field")));
}

TEST(SamplingFields, SeedsHaveAnySixtyFourBits) {
  EXPECT_EQ(Read(request::kChat, "seed", "18446744073709551615")->sampling().seed(), ~uint64_t{0});
  EXPECT_EQ(Read(request::kChat, "seed", "-2")->sampling().seed(), ~uint64_t{1});
  EXPECT_FALSE(Read(request::kChat, "seed", "18446744073709551616").ok());
}

TEST(SamplingFields, LargeIntegersAreQuotedAsTheyWereWritten) {
  for (const char* name : {"max_tokens", "top_k", "seed", "stop"}) {
    for (const char* large : {"99999999999999999999", "100000000000000000000"}) {
      EXPECT_THAT(Read(request::kChat, name, large),
                  testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                    StartsWith(absl::StrCat(name, ": ", large, ", expected"))));
    }
  }
  EXPECT_EQ(Read(request::kChat, "temperature", "99999999999999999999")->sampling().temperature(),
            1e20);
  EXPECT_EQ(Read(request::kChat, "logit_bias", "{\"5\":99999999999999999999}")
                ->sampling()
                .logit_bias()
                .at(5),
            1e20f);
}

TEST(SamplingFields, BiasesComeAsPairs) {
  for (const request::Api api : kApis) {
    EXPECT_TRUE(Read(api, "logit_bias", "[]")->sampling().logit_bias().empty());
    ASSERT_OK_AND_ASSIGN(const auto request, Read(api, "logit_bias", "[[15043,1.5],[7.0,-2]]"));
    EXPECT_THAT(
        request.sampling().logit_bias(),
        ::testing::UnorderedElementsAre(::testing::Pair(15043, 1.5f), ::testing::Pair(7, -2.0f)));
    for (const char* wrong : {"[5]", "[[5]]", "[[5,1,2]]", "[[-5,1]]", "[[5.5,1]]", "[[5,false]]",
                              "[[\"a\",1]]", "[[99999999999999999999,1]]", "[[5,1],[5,2]]"}) {
      EXPECT_THAT(Read(api, "logit_bias", wrong),
                  testing::StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("logit_bias[")))
          << wrong;
    }
  }
}

// Absent, every token is allowed.
TEST(SamplingFields, AnEmptyListOfAllowedTokensIsRefused) {
  for (const request::Api api : kApis) {
    EXPECT_THAT(Read(api, "allowed_token_ids", "[]"),
                testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                  StartsWith("allowed_token_ids: an empty list, expected")));
    EXPECT_OK(Read(api, "stop_token_ids", "[]"));
  }
}

// As vLLM, llama.cpp and Ollama mean it: equal requests with it need not get equal answers.
TEST(SamplingFields, ASeedOfMinusOneIsNone) {
  for (const request::Api api : kApis) {
    ASSERT_OK_AND_ASSIGN(const auto request, Read(api, "seed", "-1"));
    EXPECT_FALSE(request.sampling().has_seed());
  }
}

}  // namespace
}  // namespace tandem::router
