// Goal: operators are served only once the clients' port is open, which takes a while when its
// certificate comes late: what they ask is about that port.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/testing/https_client.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/http/front_end_parts.h"

namespace tandem::router {
namespace {

// The IPv4 ports at which this process listens.
std::set<int> ListeningPorts() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  std::set<int> ports;
  for (int fd = 0; fd < static_cast<int>(std::min<rlim_t>(files.rlim_cur, 4096)); ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    sockaddr_in address{};
    size = sizeof address;
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    if (address.sin_family == AF_INET) ports.insert(ntohs(address.sin_port));
  }
  return ports;
}

// Whether `condition` comes to hold.
template <typename Condition>
bool Comes(const Condition& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
  }
  return true;
}

class StartOrder : public ::testing::Test {
 protected:
  StartOrder() : folder_(NewFolder()), certificate_(folder_), pipe_((folder_ / "pipe").string()) {
    TANDEM_CHECK(::mkfifo(pipe_.c_str(), 0600) == 0);
  }
  ~StartOrder() override { std::filesystem::remove_all(folder_); }

  static std::filesystem::path NewFolder() {
    auto folder = std::filesystem::path(::testing::TempDir()) /
                  absl::StrCat("tandem-start-order-", ::getpid());
    std::filesystem::create_directories(folder);
    return folder;
  }
  // The end of the pipe for writing; returns once the router reads its certificate there.
  int AwaitReader() const { return ::open(pipe_.c_str(), O_WRONLY | O_CLOEXEC); }
  void GiveCertificate(int end) const {
    std::stringstream text;
    text << std::ifstream(certificate_.path()).rdbuf();
    const std::string bytes = text.str();
    EXPECT_EQ(::write(end, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    ::close(end);
  }

  const std::filesystem::path folder_;
  const testing::Certificate certificate_;
  const std::string pipe_;
  FrontEndParts parts_;
  Inbox inbox_{64, [](std::vector<InboxItem>&) {}};
  guided::CompileQueue constraints_{[](const request::GuidedParams&) {}};
  LongWork long_work_;
  StatusBoard status_{inbox_};
};

// Both ports read the certificate before they are bound, the operators' first.
TEST_F(StartOrder, OperatorsWaitForTheClientsPort) {
  HttpApiOptions options;
  options.admin_address = "127.0.0.1:0";
  options.server.tls = {.certificate = pipe_, .key = certificate_.key_path()};
  const std::set<int> before = ListeningPorts();
  absl::StatusOr<std::unique_ptr<HttpApi>> http;
  std::thread starter([&] {
    http = StartHttp(parts_.Session(inbox_, constraints_, long_work_), status_, options);
  });
  GiveCertificate(AwaitReader());
  std::set<int> ports;
  EXPECT_TRUE(Comes([&] {
    ports = ListeningPorts();
    for (const int port : before) ports.erase(port);
    return !ports.empty();
  }));
  const int clients_end = AwaitReader();
  absl::Notification answered;
  int status = 0;
  std::thread early([&] {
    testing::HttpsSocket socket(absl::StrCat("127.0.0.1:", *ports.begin()), certificate_.path());
    if (socket.Send(testing::GetOf("/version"))) status = socket.Read().status;
    answered.Notify();
  });
  // It cannot come before the certificate below; a router that serves too early would send it now.
  EXPECT_FALSE(answered.WaitForNotificationWithTimeout(absl::Milliseconds(100)));
  // Sessions look at the file again.
  std::filesystem::copy(certificate_.path(), folder_ / "late");
  std::filesystem::rename(folder_ / "late", pipe_);
  GiveCertificate(clients_end);
  starter.join();
  early.join();
  ASSERT_OK(http.status());
  EXPECT_EQ(status, 200);
  (*http)->Stop();
}

}  // namespace
}  // namespace tandem::router
