// Goal: a traceparent is taken for what W3C Trace Context says it is, and for nothing else.
#include "router/front_end/trace_parent.h"

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";

TEST(TraceParent, GivesTheTraceId) {
  EXPECT_EQ(TraceIdOf("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), kTrace);
  // A later version may say more.
  EXPECT_EQ(TraceIdOf("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more"), kTrace);
}

TEST(TraceParent, IgnoresWhatIsNone) {
  for (const char* text : {"", "00", "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
                           "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                           "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                           "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
                           "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more",
                           "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
                           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333g-01"}) {
    EXPECT_EQ(TraceIdOf(text), "") << text;
  }
}

}  // namespace
}  // namespace tandem::router
