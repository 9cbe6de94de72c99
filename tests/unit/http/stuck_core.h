// Front ends over HTTP and gRPC whose core is stuck in one item until the test ends.
// Thread safety: none; the test's thread.
#pragma once

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/http/front_end_parts.h"

namespace tandem::router {

class StuckCore : public ::testing::Test {
 protected:
  // Items that the inbox has room for.
  explicit StuckCore(size_t inbox_max)
      : inbox_(inbox_max, [this](std::vector<InboxItem>&) {
          if (!stuck_.HasBeenNotified()) stuck_.Notify();
          released_.WaitForNotification();
        }) {}

  void SetUp() override {
    ASSERT_OK(front_ends_.Start(Session(), status_, service_));
    core_ = std::thread([this] { EXPECT_TRUE(inbox_.TryPush(Nothing())); });
    stuck_.WaitForNotification();
  }
  void TearDown() override {
    released_.Notify();
    if (core_.joinable()) core_.join();
    front_ends_.Stop();
  }
  static CoreCall Nothing() {
    return {[](RouterCore&, absl::Time) {}};
  }
  AnswerSession::Deps Session() {
    AnswerSession::Deps deps = parts_.Session(inbox_, constraints_, long_work_);
    deps.access_log = true;
    return deps;
  }

  FrontEndParts parts_;
  absl::Notification stuck_, released_;
  Inbox inbox_;
  guided::CompileQueue constraints_{[](const request::GuidedParams&) {}};
  LongWork long_work_;
  StatusBoard status_{inbox_};
  ClientService service_{Session(), status_,
                         [] { return ServedFleet{.numerics_id = "n", .context_tokens = 4096}; }};
  FrontEnds front_ends_;
  std::thread core_;
};

}  // namespace tandem::router
