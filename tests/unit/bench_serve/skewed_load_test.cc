// Goal: of a skewed load, long requests come first and fill a pool each, short ones come a second
// later, and only what is generated until the last short one ends counts.
#include "cli/bench_lending/skewed_load.h"

#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

TEST(SkewedLoad, LongOnesFillAPoolAndShortOnesFollow) {
  const SkewedLoadOptions options = {
      .long_ones = 2, .short_ones = 3, .pool_tokens = 1000, .seed = 5};
  SkewedLoad load(options), same(options);
  for (int i = 0; i < 5; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(load.NextGap(), i == 2 ? absl::Seconds(1) : absl::ZeroDuration());
    const LoadRequest request = load.Next();
    EXPECT_EQ(request.index, i);
    EXPECT_EQ(request.tokens, same.Next().tokens) << "equal options give equal requests";
    const size_t all = request.tokens.size() + static_cast<size_t>(request.max_tokens);
    EXPECT_EQ(request.max_tokens, i < 2 ? 40 : 10);
    EXPECT_EQ(all, i < 2 ? 994u : 16u);
  }
  EXPECT_EQ(load.NextGap(), std::nullopt);
}

RequestRecord Record(int64_t index, double begin, double first, double end, int32_t tokens) {
  RequestRecord record{.index = index,
                       .intended = absl::Seconds(begin),
                       .first_token = absl::Seconds(first),
                       .ended = absl::Seconds(end)};
  record.output_tokens = tokens;
  return record;
}

TEST(SkewedTokensPerSecond, CountsUntilTheLastShortOneEnds) {
  // Short ones: 20 tokens from second 1 to 5. A long one: 40 tokens from 0.5 to 8.5, of which half
  // fall into these four seconds. Another had ended by then.
  std::vector<RequestRecord> records = {Record(0, 0, 0.5, 8.5, 40), Record(1, 0, 0.5, 0.9, 40),
                                        Record(2, 1, 2, 3, 10), Record(3, 1, 2, 5, 10)};
  EXPECT_DOUBLE_EQ(SkewedTokensPerSecond(records, 2), 40 / 4.0);
  records[0].error = "HTTP 503";
  EXPECT_DOUBLE_EQ(SkewedTokensPerSecond(records, 2), 20 / 4.0);
  records.resize(2);
  EXPECT_EQ(SkewedTokensPerSecond(records, 2), 0) << "no short one";
}

}  // namespace
}  // namespace tandem::cli
