#include "cli/bench/ucx_perftest.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"
#include "common/transfer/arena_descriptor.h"

namespace tandem::cli {
namespace {

constexpr absl::Duration kRunMax = absl::Minutes(1);
constexpr size_t kOutputBytesMax = 64 << 10;
// Between two tries of a client whose server does not listen yet.
constexpr absl::Duration kTryAgainAfter = absl::Milliseconds(50);
constexpr size_t kErrorsMax = 4 << 10;  // of what a program wrote to its standard error, the end
// Bytes that one run moves after its warm-up.
constexpr int64_t kRunBytes = int64_t{1} << 30;
constexpr int kBandwidthColumn = 5;  // overall_bw, 2^20 bytes a second

// The last line that is not empty, of a program's standard error.
std::string LastLine(int fd) {
  struct stat file = {};
  if (::fstat(fd, &file) != 0) return "";
  std::string text(std::min(static_cast<size_t>(file.st_size), kErrorsMax), '\0');
  const off_t at = file.st_size - static_cast<off_t>(text.size());
  if (::pread(fd, text.data(), text.size(), at) != static_cast<ssize_t>(text.size())) return "";
  const absl::string_view whole = absl::StripTrailingAsciiWhitespace(text);
  const size_t end = whole.rfind('\n');
  return std::string(end == absl::string_view::npos ? whole : whole.substr(end + 1));
}

// A program found in PATH, over TCP only; its output goes to `output`. Ended with this object.
class Process {
 public:
  static absl::StatusOr<std::unique_ptr<Process>> Start(
      std::vector<std::string> words, std::map<std::string, std::string> environment, int output) {
    transfer::OwnedDescriptor errors(::memfd_create("errors", MFD_CLOEXEC));
    if (errors.get() < 0) {
      return absl::ResourceExhaustedError(absl::StrCat("memfd_create: ", std::strerror(errno)));
    }
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, errors.get(), STDERR_FILENO);
    if (output >= 0) {
      ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    } else {
      ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    }
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    environment["UCX_TLS"] = "tcp";
    std::vector<std::string> settings;
    for (const auto& [name, value] : environment)
      settings.push_back(absl::StrCat(name, "=", value));
    std::vector<char*> variables;
    for (std::string& setting : settings) variables.push_back(setting.data());
    variables.push_back(nullptr);
    pid_t pid = 0;
    const int error =
        ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), variables.data());
    ::posix_spawn_file_actions_destroy(&actions);
    if (error == ENOENT) {
      return absl::NotFoundError(absl::StrCat(words[0], " is not installed"));
    }
    if (error != 0) {
      return absl::UnavailableError(absl::StrCat(words[0], ": ", std::strerror(error)));
    }
    return std::unique_ptr<Process>(new Process(pid, std::move(errors)));
  }
  ~Process() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  // Whether it has ended. Waits up to `most` for that.
  bool EndsWithin(absl::Duration most) const {
    const transfer::OwnedDescriptor handle(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
    // Without a handle (-1, before Linux 5.3) only the time passes.
    pollfd polled = {.fd = handle.get(), .events = POLLIN, .revents = 0};
    ::poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(most)));
    siginfo_t info = {};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == pid_;
  }
  // ": " and the last line that it wrote to its standard error; empty without one.
  std::string Why() const {
    const std::string line = LastLine(errors_.get());
    return line.empty() ? "" : absl::StrCat(": ", line);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

 private:
  Process(pid_t pid, transfer::OwnedDescriptor errors) : pid_(pid), errors_(std::move(errors)) {}
  const pid_t pid_;
  const transfer::OwnedDescriptor errors_;
};

// A port that was free a moment ago.
absl::StatusOr<int> FreePort() {
  const transfer::OwnedDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t bytes = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (socket.get() < 0 || ::bind(socket.get(), generic, bytes) != 0 ||
      ::getsockname(socket.get(), generic, &bytes) != 0) {
    return absl::UnavailableError(absl::StrCat("no free port: ", std::strerror(errno)));
  }
  return ntohs(address.sin_port);
}

// Until the end of the output, or of the time.
std::string ReadAll(int fd, absl::Time until) {
  std::string text;
  while (text.size() < kOutputBytesMax) {
    pollfd polled = {.fd = fd, .events = POLLIN, .revents = 0};
    const absl::Duration rest = std::max(until - RealClock().Now(), absl::ZeroDuration());
    if (::poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(rest))) <= 0) break;
    char buffer[4096];
    const ssize_t bytes = ::read(fd, buffer, sizeof buffer);
    if (bytes <= 0) break;
    text.append(buffer, static_cast<size_t>(bytes));
  }
  return text;
}

}  // namespace

absl::StatusOr<double> ParseUcxPerftest(const std::string& output) {
  const std::vector<absl::string_view> lines =
      absl::StrSplit(absl::StripTrailingAsciiWhitespace(output), '\n');
  const std::vector<absl::string_view> columns = absl::StrSplit(lines.back(), ',');
  double mib = 0;
  if (columns.size() <= kBandwidthColumn || !absl::SimpleAtod(columns[kBandwidthColumn], &mib)) {
    return absl::InvalidArgumentError(absl::StrCat("ucx_perftest printed \"", lines.back(),
                                                   "\", expected figures between commas"));
  }
  return mib * 1048576 / 1e9;
}

absl::StatusOr<double> UcxPerftestGbps(const std::string& test, int64_t message_bytes,
                                       const std::map<std::string, std::string>& environment) {
  ASSIGN_OR_RETURN(const int port, FreePort());
  const std::string number = absl::StrCat(port);
  ASSIGN_OR_RETURN(const auto server,
                   Process::Start({"ucx_perftest", "-p", number}, environment, -1));
  const absl::Time until = RealClock().Now() + kRunMax;
  const std::string iterations = absl::StrCat(std::max<int64_t>(kRunBytes / message_bytes, 100));
  // The server may not listen yet: then the client ends at once without an output.
  std::string why;
  while (RealClock().Now() < until) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return absl::ResourceExhaustedError("no pipe");
    const transfer::OwnedDescriptor read_end(ends[0]);
    transfer::OwnedDescriptor write_end(ends[1]);
    ASSIGN_OR_RETURN(
        const auto client,
        Process::Start({"ucx_perftest", "127.0.0.1", "-p", number, "-t", test, "-s",
                        absl::StrCat(message_bytes), "-n", iterations, "-w", "100", "-f", "-v"},
                       environment, write_end.get()));
    write_end = transfer::OwnedDescriptor();
    const std::string output = ReadAll(read_end.get(), until);
    if (absl::StrContains(output, '\n')) return ParseUcxPerftest(output);
    why = client->Why();
    if (server->EndsWithin(kTryAgainAfter)) {
      return absl::UnavailableError(absl::StrCat(
          "the server of ucx_perftest ended before a client had figures", server->Why()));
    }
  }
  return absl::UnavailableError(absl::StrCat("ucx_perftest ", test, " gave no figures within ",
                                             absl::FormatDuration(kRunMax), why));
}

}  // namespace tandem::cli
