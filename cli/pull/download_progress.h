// Shows on standard error how much of a download has arrived: on a terminal a line that changes,
// otherwise a line every ten seconds.
// Thread safety: none; one thread. Owner: the pull command.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "cli/pull/download.h"

namespace tandem::cli {

class DownloadProgress {
 public:
  // `bytes`: of all files; `here`: of those that were here before. `enabled`: false shows nothing.
  DownloadProgress(int64_t bytes, int64_t here, bool enabled);
  ~DownloadProgress() { Clear(); }
  DownloadProgress(const DownloadProgress&) = delete;
  DownloadProgress& operator=(const DownloadProgress&) = delete;

  // `bytes` of this file have arrived.
  void Show(const std::string& file, int64_t bytes);
  void FileEnds(int64_t bytes);
  void Clear();

  // The line's text, in at most `columns` characters.
  static std::string Text(const std::string& file, int64_t done, int64_t bytes, double per_second,
                          int columns);

 private:
  const int64_t bytes_, here_;
  const bool enabled_, terminal_;
  int64_t before_ = 0;  // of files that have ended
  absl::Time began_, next_;
};

// "URL: the reason; trying again in 2s (2 of 6)".
std::string RetryText(const Retry& retry);
// Shows that on standard error as a line of its own, in place of a terminal's progress line.
void ShowRetry(const Retry& retry);

// "12.3 MB".
std::string BytesText(int64_t bytes);

}  // namespace tandem::cli
