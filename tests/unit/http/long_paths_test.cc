// Goal: an error about a JSON body names the field at fault, and of a long path its first keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "router/front_end/json_body.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

TEST(JsonBody, RepeatsTheBeginningOfALongPath) {
  const std::string key(100, 'k');
  const auto message = [&](int depth) {
    std::string body;
    for (int i = 0; i < depth; ++i) body += "{\"" + key + "\":";
    return std::string(ParseJsonBody(body + "{\"a\":1,\"a\":2}").status().message());
  };
  EXPECT_THAT(message(9), HasSubstr(key + ".a: given twice"));
  EXPECT_THAT(message(60), HasSubstr(key + "....a: given twice"));
  EXPECT_LT(message(60).size(), 1100u);
}

}  // namespace
}  // namespace tandem::router
