// Goal: a download that fails and is tried again says so before each wait: why, how long it waits,
// and which try of how many follows.
#include <gmock/gmock.h>

#include <vector>

#include "cli/pull/download.h"
#include "cli/pull/download_progress.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

TEST(DownloadRetry, EachIsToldBeforeItsWait) {
  std::vector<Retry> told;
  size_t waits = 0;
  DownloadOptions options;
  options.attempts = 3;
  options.first_wait = absl::Seconds(2);
  options.wait = [&](absl::Duration wait) {
    if (wait > absl::ZeroDuration()) {
      EXPECT_EQ(told.size(), ++waits);
    }
    return true;
  };
  options.on_retry = [&](const Retry& retry) { told.push_back(retry); };
  ASSERT_OK_AND_ASSIGN(const auto downloader, Downloader::Create(options));
  // No process listens on port 1.
  EXPECT_EQ(downloader->FetchText("http://127.0.0.1:1/list", 100).status().code(),
            absl::StatusCode::kUnavailable);
  ASSERT_EQ(told.size(), 2u) << "the last failure is the result";
  EXPECT_EQ(waits, 2u);
  EXPECT_EQ(told[0].next, 2);
  EXPECT_EQ(told[0].wait, absl::Seconds(2));
  EXPECT_EQ(told[1].next, 3);
  EXPECT_EQ(told[1].wait, absl::Seconds(4));
  EXPECT_THAT(RetryText(told[0]), HasSubstr("http://127.0.0.1:1/list: "));
}

TEST(DownloadRetry, TheTextNamesTheReasonTheWaitAndTheTry) {
  EXPECT_EQ(RetryText({absl::UnavailableError("https://hub/a: Couldn't resolve host name"),
                       absl::Seconds(2), 2, 6}),
            "https://hub/a: Couldn't resolve host name; trying again in 2s (2 of 6)");
}

}  // namespace
}  // namespace tandem::cli
