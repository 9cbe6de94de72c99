// Goal: without API keys a page whose site's name was led to the router (DNS rebinding) reads and
// starts nothing, and clients that call the router by an address, a local name, a Service's name or
// an allowed origin's name are served.
#include "router/front_end/http/request_host.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr bool kLoopback = true;

absl::Status Check(const std::string& host, const std::string& origin, bool loopback,
                   const std::vector<std::string>& allowed = {}) {
  HttpRequest request;
  request.headers = {{"host", host}};
  if (!origin.empty()) request.headers.emplace_back("origin", origin);
  return CheckHost(request, loopback, allowed);
}

TEST(RequestHost, ListenersOfOneMachine) {
  for (const char* address : {"127.0.0.1:8000", "127.1.2.3:0", "localhost:1", "[::1]:8000"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0:8000", "[::]:8000", "10.0.0.1:8000", "router:8000",
                              "127.0.0.1.example:8000", ""}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(RequestHost, AddressesAndLocalNamesAreServed) {
  for (const char* host :
       {"", "127.0.0.1", "127.0.0.1:8000", "192.168.1.5:8000", "[::1]:8000", "[fe80::1]",
        "localhost", "LocalHost:8000", "localhost.:8000", "tandem.localhost", "router",
        "router:8000", "box.local:8000", "router.fleet.internal", "box.home.arpa", "tandem.test",
        "box.lan:8000"}) {
    for (const bool loopback : {true, false}) {
      EXPECT_OK(Check(host, "", loopback)) << host;
      EXPECT_OK(Check(host, absl::StrCat("http://", host), loopback)) << host << ", from its page";
    }
  }
}

TEST(RequestHost, NamesThatCanBeRegisteredAreRefusedOnLoopback) {
  for (const char* host :
       {"evil.example", "Evil.Example:8000", "evil.example.:8000", "127.0.0.1.evil.example",
        "localhost.evil.example", "x.locals.dev", "1.2.3.4.5"}) {
    for (const char* origin : {"", "http://evil.example:8000", "null"}) {
      EXPECT_THAT(Check(host, origin, kLoopback),
                  StatusIs(absl::StatusCode::kPermissionDenied,
                           HasSubstr("expected an address, a local name or the host of one of "
                                     "--allowed-origins")))
          << host;
    }
  }
}

// Elsewhere programs use names: a Service's, a proxy's. Only a page of that very name is refused.
TEST(RequestHost, OtherListenersRefusePagesAlone) {
  const std::string service = "tandem-router.fleet.svc.cluster.example:8000";
  EXPECT_OK(Check(service, "", !kLoopback));
  EXPECT_OK(Check(service, "https://chat.example", !kLoopback)) << "a proxy's";
  // What a browser says of a page that asks it not to tell.
  EXPECT_FALSE(Check(service, "null", !kLoopback).ok());
  EXPECT_FALSE(Check(service, "http://" + service, !kLoopback).ok());
  EXPECT_FALSE(Check("evil.example", "http://EVIL.example:8000", !kLoopback).ok());
}

TEST(RequestHost, AllowedOriginsAreServed) {
  for (const bool loopback : {true, false}) {
    const std::string origin = "https://chat.example";
    EXPECT_OK(Check("chat.example", origin, loopback, {"http://a.example", origin}));
    EXPECT_OK(Check("Chat.Example:8000", origin, loopback, {origin + ":8000"}));
    EXPECT_OK(Check("any.example", "http://any.example", loopback, {"*"}));
    EXPECT_OK(Check("api.example", origin, loopback, {origin})) << "a proxy's name";
    EXPECT_FALSE(Check("evil.example", "http://evil.example", loopback, {origin}).ok());
  }
}

}  // namespace
}  // namespace tandem::router
