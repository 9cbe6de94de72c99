#include "cli/status/quantities.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::cli {

std::string ShortCount(double count) {
  count = std::max(count, 0.0);
  if (count < 999.5) return absl::StrFormat("%.0f", count);
  for (const char* unit : {"k", "M", "G"}) {
    count /= 1000;
    if (count < 9.95) return absl::StrFormat("%.1f%s", count, unit);
    if (count < 999.5) return absl::StrFormat("%.0f%s", count, unit);
  }
  return ">999G";
}

std::string ShortBytes(double bytes) {
  const std::string count = ShortCount(bytes);
  return count == ">999G" ? ">999GB" : absl::StrCat(count, "B");
}

std::string ShortAge(double seconds) {
  seconds = std::max(seconds, 0.0);
  if (seconds < 9.95) return absl::StrFormat("%.1fs", seconds);
  const int64_t whole = static_cast<int64_t>(std::min(seconds, 1e12));
  if (whole < 60) return absl::StrCat(whole, "s");
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  if (whole < 48 * 3600) return absl::StrFormat("%dh%02dm", whole / 3600, whole / 60 % 60);
  return absl::StrCat(std::min<int64_t>(whole / 86400, 99999), "d");
}

std::string Cut(absl::string_view text, int columns) {
  const size_t width = static_cast<size_t>(std::max(columns, 0));
  std::string cut(text.substr(0, width));
  for (char& c : cut) c = c < 0x20 || c > 0x7E ? '?' : c;
  if (text.size() > width && width > 0) cut.back() = '~';
  return cut;
}

std::string Fit(absl::string_view text, int columns) {
  std::string fitted = Cut(text, columns);
  fitted.resize(static_cast<size_t>(std::max(columns, 0)), ' ');
  return fitted;
}

int Percent(int64_t part, int64_t whole) {
  return whole <= 0
             ? 0
             : static_cast<int>(100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace tandem::cli
