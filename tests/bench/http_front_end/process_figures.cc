#include "tests/bench/http_front_end/process_figures.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tandem::bench {
namespace {

std::string Contents(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// utime and stime are the 14th and 15th fields; the second, a name in parentheses, may hold blanks.
double CpuMsOfStat(const std::string& stat) {
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  const std::vector<std::string> fields = absl::StrSplit(stat.substr(name_end + 2), ' ');
  int64_t user = 0, system = 0;
  if (fields.size() < 13 || !absl::SimpleAtoi(fields[11], &user) ||
      !absl::SimpleAtoi(fields[12], &system)) {
    return 0;
  }
  return 1000.0 * static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace

std::map<std::string, double> CpuMsByThread(pid_t pid) {
  std::map<std::string, double> times;
  std::error_code error;
  const std::string tasks = absl::StrCat("/proc/", pid, "/task");
  for (const auto& task : std::filesystem::directory_iterator(tasks, error)) {
    const std::string stat = Contents(task.path().string() + "/stat");
    const size_t begin = stat.find('('), end = stat.rfind(')');
    if (begin == std::string::npos || end == std::string::npos) continue;
    std::string name = stat.substr(begin + 1, end - begin - 1);
    name.erase(name.find_last_not_of("0123456789-") + 1);
    times[name] += CpuMsOfStat(stat);
  }
  return times;
}

double CpuMs(pid_t pid) { return CpuMsOfStat(Contents(absl::StrCat("/proc/", pid, "/stat"))); }

int64_t ResidentBytes(pid_t pid) {
  const std::vector<std::string> fields =
      absl::StrSplit(Contents(absl::StrCat("/proc/", pid, "/statm")), ' ');
  int64_t pages = 0;
  if (fields.size() < 2 || !absl::SimpleAtoi(fields[1], &pages)) return 0;
  return pages * ::sysconf(_SC_PAGESIZE);
}

}  // namespace tandem::bench
