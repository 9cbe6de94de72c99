// Goal: what --params names is what the request has, whatever other flags say: also where it names
// a default, a list or a field of a part of the request.
#include "cli/flags/sequence_flags.h"

#include <gmock/gmock.h>

#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;

// `request` with --n=3, --echo and these --params.
v1::GenerateRequest With(const std::string& params, v1::GenerateRequest request = {}) {
  SequenceFlags flags;
  flags.n = 3;
  flags.echo = true;
  flags.params = params;
  EXPECT_OK(ApplySequenceFlags(flags, request));
  return request;
}

TEST(SequenceFlags, ParamsWinWithDefaults) {
  EXPECT_TRUE(With("").echo());
  EXPECT_FALSE(With(R"({"echo": false})").echo());
  EXPECT_FALSE(With(R"({"echo": null})").echo());
  EXPECT_EQ(With(R"({"n": 2})").n(), 2);
  v1::GenerateRequest salted;
  salted.set_cache_salt("of a flag");
  EXPECT_EQ(With(R"({"cacheSalt": ""})", salted).cache_salt(), "");
}

TEST(SequenceFlags, ParamsReplaceLists) {
  v1::GenerateRequest request;
  request.add_bad_words("of a flag");
  request.mutable_stop()->add_stop("of a flag");
  const auto named = With(R"({"bad_words": ["a"], "stop": {"stop": ["b"]}})", request);
  EXPECT_THAT(named.bad_words(), ElementsAre("a"));
  EXPECT_THAT(named.stop().stop(), ElementsAre("b"));
  EXPECT_EQ(With(R"({"bad_words": []})", request).bad_words_size(), 0);
}

TEST(SequenceFlags, ParamsLeaveWhatTheyDoNotName) {
  v1::GenerateRequest request;
  request.mutable_stop()->set_max_tokens(5);
  request.mutable_stop()->add_stop("of a flag");
  const auto named = With(R"({"stop": {"min_tokens": 2}})", request);
  EXPECT_EQ(named.stop().max_tokens(), 5);
  EXPECT_EQ(named.stop().min_tokens(), 2);
  EXPECT_THAT(named.stop().stop(), ElementsAre("of a flag"));
  EXPECT_EQ(named.n(), 3);
  EXPECT_TRUE(named.echo());
}

TEST(SequenceFlags, ParamsThatAreNoRequestAreNamed) {
  v1::GenerateRequest request;
  SequenceFlags flags;
  for (const char* wrong : {"{", "[1]", R"({"no_such_field": 1})"}) {
    flags.params = wrong;
    EXPECT_THAT(
        ApplySequenceFlags(flags, request),
        testing::StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("--params: ")));
  }
}

}  // namespace
}  // namespace tandem::cli
