// Goal: what a sampling flag says arrives at the nodes, and is what an HTTP client says under the
// parameter's name; flags that are not given leave the router's defaults; bounds are the table's.
#include "cli/flags/sampling_flags.h"

#include <cstdio>

#include "absl/strings/str_replace.h"
#include "common/rpc/convert.h"
#include "router/front_end/http/sampling_fields.h"
#include "router/front_end/json_body.h"
#include "tests/testing/parameter_samples.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

// The request that `args` lead to.
absl::StatusOr<v1::GenerateRequest> RequestOf(const std::vector<std::string>& args) {
  config::Schema schema("tandem generate", "A test.");
  SamplingFlags flags;
  RegisterSamplingFlags(schema, flags);
  const absl::StatusOr<config::Parsed> parsed = schema.Parse({.args = args});
  if (!parsed.ok()) return parsed.status();
  v1::GenerateRequest request;
  ApplySamplingFlags(flags, request);
  return request;
}

std::string FlagOf(const request::Description& about) {
  return absl::StrCat("--", absl::StrReplaceAll(about.name, {{"_", "-"}}));
}

std::string FlagText(const std::vector<std::string>& texts) { return absl::StrJoin(texts, ","); }
template <typename T>
std::string FlagText(const T& value) {
  return testing::JsonOf(value);
}

// What a node computes with after `request` went over the wire twice.
template <typename Row>
typename Row::value_type AtTheNode(const Row& row, const v1::GenerateRequest& request) {
  const auto sampling = rpc::FromWire(rpc::ToWire(rpc::FromWire(request.sampling())));
  const auto stop = rpc::FromWire(rpc::ToWire(rpc::FromWire(request.stop())));
  return testing::PartOf(row, sampling, stop).*row.member;
}

TEST(SamplingFlags, EveryFlagSaysWhatTheHttpFieldSays) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  testing::Generator random(seed);
  int flags = 0;
  for (int round = 0; round < 20; ++round) {
    request::ForEachParameter([&](const auto& row) {
      if (row.about.flag.help.empty()) return;
      typename std::decay_t<decltype(row)>::value_type value;
      testing::Sample(row.about, random, &value);
      ASSERT_OK_AND_ASSIGN(const auto by_flag,
                           RequestOf({absl::StrCat(FlagOf(row.about), "=", FlagText(value))}));
      EXPECT_EQ(AtTheNode(row, by_flag), value) << row.about.name;
      ASSERT_OK_AND_ASSIGN(const router::Json body,
                           router::ParseJsonBody(absl::StrCat("{\"", row.about.name,
                                                              "\":", testing::JsonOf(value), "}")));
      router::Fields fields(body);
      v1::GenerateRequest by_http;
      router::ReadSamplingFields(fields, request::kCompletions, by_http);
      EXPECT_OK(fields.Finish(/*strict=*/true));
      EXPECT_EQ(AtTheNode(row, by_http), value) << row.about.name;
      ++flags;
    });
  }
  EXPECT_GE(flags, 20 * 9);
}

TEST(SamplingFlags, FlagsThatAreNotGivenLeaveDefaults) {
  ASSERT_OK_AND_ASSIGN(const auto request, RequestOf({}));
  EXPECT_FALSE(request.sampling().has_seed());
  EXPECT_EQ(request.stop().max_tokens(), 256);
  request::ForEachParameter([&](const auto& row) {
    using Params = typename std::decay_t<decltype(row)>::params_type;
    if (row.about.flag.initial.has_value()) return;
    EXPECT_EQ(AtTheNode(row, request), Params().*row.member) << row.about.name;
  });
}

TEST(SamplingFlags, UnsetValuesLeaveTheFieldOut) {
  ASSERT_OK_AND_ASSIGN(const auto request, RequestOf({"--max-tokens=0", "--seed=-1"}));
  EXPECT_FALSE(request.stop().has_max_tokens());
  EXPECT_FALSE(request.sampling().has_seed());
}

TEST(SamplingFlags, ValuesOutOfTheTablesRangeAreRefusedByName) {
  request::ForEachParameter([&](const auto& row) {
    using T = typename std::decay_t<decltype(row)>::value_type;
    if (row.about.flag.help.empty()) return;
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, int32_t>) {
      const double low = row.about.flag.unset.has_value()
                             ? static_cast<double>(*row.about.flag.unset)
                             : row.about.range.low;
      std::vector<std::string> all_wrong = {absl::StrCat(low - 1), "many"};
      if (row.about.range.low_excluded) all_wrong.push_back(absl::StrCat(low));
      for (const std::string& wrong : all_wrong) {
        EXPECT_THAT(RequestOf({absl::StrCat(FlagOf(row.about), "=", wrong)}),
                    testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                      ::testing::HasSubstr(FlagOf(row.about).substr(2))));
      }
    }
  });
}

}  // namespace
}  // namespace tandem::cli
