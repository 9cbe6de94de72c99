// Goal: deadlines and intervals that no request or node could keep are refused, with the flag and
// the least value.
#include "router/process/router_config.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "router/process/router_process.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

absl::Status Parse(const std::string& flag, const std::string& value) {
  RouterConfig config;
  config::Schema schema("tandem-router", "Routes.");
  RegisterRouterConfig(schema, config);
  return schema.Parse({.args = {absl::StrCat("--", flag, "=", value)}}).status();
}

TEST(RouterConfig, RefusesTimesThatNothingCanKeep) {
  for (const char* flag : {"queue-deadline", "prefill-deadline", "token-deadline",
                           "heartbeat-interval", "node-lost-after", "overload-interval"}) {
    for (const char* value : {"0", "-1s", "999us"})
      EXPECT_THAT(Parse(flag, value), StatusIs(kInvalid, AllOf(HasSubstr(flag), HasSubstr("1ms"))));
    EXPECT_OK(Parse(flag, "1ms"));
  }
  for (const char* flag : {"drain-timeout", "priority-level", "overload-delay"}) {
    EXPECT_THAT(Parse(flag, "-1ms"), StatusIs(kInvalid, HasSubstr(flag)));
    EXPECT_OK(Parse(flag, "0"));
  }
}

TEST(RouterConfig, NodesReportBeforeTheyAreLost) {
  RouterConfig config;
  config.common.engine = "hash";
  config.core.heartbeat_interval = config.core.node_lost_after = absl::Seconds(2);
  EXPECT_THAT(StartRouter(config, {}).status(),
              StatusIs(kInvalid, AllOf(HasSubstr("node-lost-after: 2s"),
                                       HasSubstr("--heartbeat-interval, 2s"))));
}

}  // namespace
}  // namespace tandem::router
