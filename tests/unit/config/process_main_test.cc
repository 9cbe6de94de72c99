// Goal: every server may have as many descriptors as the system allows it.
#include "common/config/process_main.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace tandem::config {
namespace {

TEST(ProcessMain, RaisesTheLimitOfDescriptors) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_GT(before.rlim_max, rlim_t{64});
  const rlimit low{.rlim_cur = 64, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  Schema schema("tandem-server", "Serves.");
  rlimit within{};
  const int code = RunProcess(schema, {}, {}, [&](StopSignal&) {
    ::getrlimit(RLIMIT_NOFILE, &within);
    return absl::OkStatus();
  });
  EXPECT_EQ(code, kExitOk);
  EXPECT_EQ(within.rlim_cur, before.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace tandem::config
