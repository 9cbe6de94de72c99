// Goal: one line shows how far a cluster's nodes are with their weights, by the slowest of them,
// and goes when all are done.
#include "cli/cluster/loading_bars.h"

#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

TEST(LoadingBars, TheSlowestNodeDecides) {
  LoadingBars bars;
  EXPECT_TRUE(bars.empty());
  EXPECT_EQ(bars.Text(80), "");
  bars.Set("decode-0", "packing", 60);
  bars.Set("prefill-0", "checking", 10);
  EXPECT_EQ(bars.Text(80),
            "weights [##                  ]  10%  decode-0 packing  prefill-0 checking");
  EXPECT_EQ(bars.Text(12), "weights [## ");
  bars.Set("prefill-0", "checking", 100);  // the stage is over
  EXPECT_EQ(bars.Text(80), "weights [############        ]  60%  decode-0 packing");
  bars.Remove("decode-0");
  EXPECT_EQ(bars.Text(80), "");
}

}  // namespace
}  // namespace tandem::cli
