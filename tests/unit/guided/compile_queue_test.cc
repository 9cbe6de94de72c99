// Goal: the queue compiles each constraint once for all that wait, in order, on its own thread; it
// refuses what is beyond its bounds and keeps serving the rest.
#include "common/guided/compile_queue.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"

namespace tandem::guided {
namespace {

using request::GuidedParams;
using ::testing::ElementsAre;

GuidedParams Regex(int i) {
  GuidedParams params;
  params.kind = GuidedParams::Kind::kRegex;
  params.text = absl::StrCat("a{", i, "}");
  return params;
}

TEST(CompileQueue, CompilesEqualConstraintsOnceAndInOrder) {
  absl::Notification begun, go_on;
  std::vector<std::string> compiled;  // on the queue's thread
  CompileQueue queue([&](const GuidedParams& params) {
    compiled.push_back(params.text);
    if (compiled.size() > 1) return;
    begun.Notify();
    go_on.WaitForNotification();
  });
  absl::BlockingCounter all(4);
  const auto add = [&](int i) {
    CompileQueue::Done done = [&all] { all.DecrementCount(); };
    ASSERT_TRUE(queue.Add(Regex(i), done));
  };
  add(1);
  begun.WaitForNotification();
  add(2);
  add(1);  // joins the one that is being compiled
  add(2);
  go_on.Notify();
  all.Wait();
  EXPECT_THAT(compiled, ElementsAre("a{1}", "a{2}"));
}

TEST(CompileQueue, RefusesBeyondItsBounds) {
  absl::Notification go_on;
  int ended = 0;  // on the queue's thread
  {
    CompileQueue queue([&](const GuidedParams&) { go_on.WaitForNotification(); });
    const auto add = [&](int i) {
      CompileQueue::Done done = [&ended] { ++ended; };
      return queue.Add(Regex(i), done);
    };
    for (size_t i = 0; i < CompileQueue::kConstraintsMax; ++i) {
      EXPECT_TRUE(add(static_cast<int>(i)));
    }
    EXPECT_FALSE(add(1000)) << "one constraint more";
    for (size_t i = CompileQueue::kConstraintsMax; i < CompileQueue::kWaitersMax; ++i) {
      ASSERT_TRUE(add(7)) << "an equal one";
    }
    EXPECT_FALSE(add(7)) << "one waiter more";
    CompileQueue::Done refused = [] {};
    EXPECT_FALSE(queue.Add(Regex(7), refused));
    EXPECT_TRUE(refused) << "a refused callback stays its caller's";
    go_on.Notify();
  }
  EXPECT_LE(ended, static_cast<int>(CompileQueue::kWaitersMax)) << "what waits may be dropped";
}

}  // namespace
}  // namespace tandem::guided
