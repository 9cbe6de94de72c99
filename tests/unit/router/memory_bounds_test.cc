// Goal: a router whose clients may make it hold more than its control group allows says so at its
// start, with the flags that help.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "common/runtime/control_groups.h"
#include "router/process/router_config.h"
#include "tests/testing/fake_root.h"

namespace tandem::router {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

RouterConfig Config(int64_t request_mib, int64_t http_mib) {
  RouterConfig config;
  config.http = "127.0.0.1:0";
  config.core.request_bytes_max = request_mib * kMiB;
  config.http_buffer_bytes = http_mib * kMiB;
  return config;
}

TEST(MemoryBounds, CountWhatClientsMayFill) {
  RouterConfig config = Config(100, 7);
  // Requests, as much for batches over HTTP, bodies and answers, gRPC's port, kept responses.
  EXPECT_EQ(MemoryBoundBytes(config), (100 + 100 + 7 + 1024 + 64) * kMiB);
  config.stored_responses_max = 0;
  EXPECT_EQ(MemoryBoundBytes(config), (100 + 100 + 7 + 1024) * kMiB);
  config.http.clear();
  EXPECT_EQ(MemoryBoundBytes(config), (100 + 1024) * kMiB);
}

TEST(MemoryBounds, AreComparedWithTheTightestGroup) {
  const testing::FakeRoot root;
  EXPECT_EQ(MemoryLimitBytes(root.path()), std::nullopt);
  root.Write("/sys/fs/cgroup/memory.max", "max");
  EXPECT_EQ(MemoryLimitBytes(root.path()), std::nullopt);
  root.Write("/proc/self/cgroup", "0::/pods/one");
  root.Write("/sys/fs/cgroup/pods/memory.max", absl::StrCat(2048 * kMiB));
  root.Write("/sys/fs/cgroup/pods/one/memory.max", absl::StrCat(1024 * kMiB));
  EXPECT_EQ(MemoryLimitBytes(root.path()), 1024 * kMiB);
  root.Write("/proc/self/cgroup", "3:memory:/pods/two");
  root.Write("/sys/fs/cgroup/memory/pods/two/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(MemoryLimitBytes(root.path()), std::nullopt);
}

TEST(MemoryBounds, AWarningNamesBothAndTheFlags) {
  const RouterConfig config = Config(100, 7);
  EXPECT_EQ(MemoryWarning(config, std::nullopt), "");
  EXPECT_EQ(MemoryWarning(config, MemoryBoundBytes(config)), "");
  EXPECT_THAT(MemoryWarning(config, MemoryBoundBytes(config) - 1),
              AllOf(HasSubstr("1295 MiB"), HasSubstr("allows 1294 MiB"),
                    HasSubstr("--request-bytes-max"), HasSubstr("--http-buffer-bytes")));
}

}  // namespace
}  // namespace tandem::router
