// Goal: a body is read as JSON only where no page of a foreign site can have sent it unasked.
#include "router/front_end/http/request_headers.h"

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

TEST(RequestHeaders, ABodyOfAPageIsJsonOnlyIfItSaysSo) {
  struct Case {
    const char* type;
    bool from_program, from_page;
  };
  for (const Case& c :
       {Case{"", true, false}, Case{" ", true, false},
        Case{"application/x-www-form-urlencoded", true, false},
        Case{"application/json", true, true}, Case{"Application/JSON; charset=utf-8", true, true},
        Case{"text/plain", false, false}}) {
    HttpRequest request;
    if (*c.type != '\0') request.headers.emplace_back("content-type", c.type);
    EXPECT_EQ(IsJson(request), c.from_program) << c.type;
    request.headers.emplace_back("origin", "https://elsewhere.example");
    EXPECT_EQ(IsJson(request), c.from_page) << c.type;
  }
}

}  // namespace
}  // namespace tandem::router
