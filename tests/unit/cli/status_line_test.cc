// Goal: a line that a command writes over itself fits its terminal, whatever it counts.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include "cli/bench_serve/progress_line.h"
#include "cli/pull/download_progress.h"
#include "cli/terminal/terminal.h"

namespace tandem::cli {
namespace {

TEST(StatusLine, IsNarrowerThanItsTerminal) {
  winsize size{};
  size.ws_col = 40;
  size.ws_row = 24;
  int user = -1, program = -1;
  ASSERT_EQ(openpty(&user, &program, nullptr, nullptr, &size), 0);
  EXPECT_EQ(StatusLineColumns(program), 39);
  close(user);
  close(program);
  const int none = open("/dev/null", O_WRONLY | O_CLOEXEC);
  EXPECT_EQ(StatusLineColumns(none), 79);
  close(none);
}

TEST(StatusLine, OfALoadIsCut) {
  constexpr int64_t kMany = 123'456'789'012;
  const LoadProgress progress = {.elapsed = absl::Seconds(12345),
                                 .begun = kMany,
                                 .ended = kMany,
                                 .failed = kMany,
                                 .in_flight = kMany,
                                 .texts = kMany};
  EXPECT_GT(ProgressLine::Text(progress, 1000).size(), 79u);
  EXPECT_EQ(ProgressLine::Text(progress, 79), ProgressLine::Text(progress, 1000).substr(0, 79));
  EXPECT_EQ(ProgressLine::Text(progress, 0), "");
}

TEST(StatusLine, OfADownloadIsCut) {
  const std::string file(100, 'x');
  const auto text = [&](int columns) {
    return DownloadProgress::Text(file, int64_t{1} << 40, int64_t{1} << 41, 1e6, columns);
  };
  EXPECT_EQ(text(79).size(), 79u);
  EXPECT_EQ(text(79), text(1000).substr(0, 79));
}

}  // namespace
}  // namespace tandem::cli
