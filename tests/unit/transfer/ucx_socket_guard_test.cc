// Goal: a connection whose other end does not answer holds up nobody, and the proof of the fleet's
// secret still comes before UCX's first bytes, on exactly the connections that UCX opens.
#include "common/transfer/ucx_socket_guard.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tandem::transfer {
namespace {

constexpr int kPatienceMs = 20'000;

class Socket {
 public:
  Socket() : Socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) {}
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Socket() { Close(); }

  int fd() const { return fd_; }
  void Close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  // Binds to a free port of this host.
  sockaddr_in Listen(int backlog) const {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(::listen(fd_, backlog), 0);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    return address;
  }
  // 0, or the error.
  int Connect(const sockaddr_in& to) const {
    const int result = ::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to);
    return result == 0 ? 0 : errno;
  }
  bool Await(short events) const {
    pollfd polled = {.fd = fd_, .events = events, .revents = 0};
    return ::poll(&polled, 1, kPatienceMs) == 1 && (polled.revents & events) != 0;
  }
  void Send(const std::string& bytes) const {
    EXPECT_EQ(::send(fd_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  std::string Receive() const {
    if (!Await(POLLIN)) return "nothing came";
    std::string bytes(100, 0);
    bytes.resize(std::max<ssize_t>(0, ::recv(fd_, bytes.data(), bytes.size(), 0)));
    return bytes;
  }

 private:
  int fd_;
};

// A listener whose queue is full: the kernel answers no further connection, as a dark host.
class DarkHost {
 public:
  DarkHost() : address_(listener_.Listen(/*backlog=*/0)) {
    for (Socket& socket : queued_) socket.Connect(address_);
  }
  const sockaddr_in& address() const { return address_; }

 private:
  Socket listener_;
  const sockaddr_in address_;
  std::vector<Socket> queued_{4};
};

TEST(UcxSocketGuard, ADarkHostHoldsUpNoOtherConnection) {
  const UcxSocketGuard guard("secret");
  const UcxSocketGuard::Scope scope(guard);
  const DarkHost dark;
  const Socket stuck;
  EXPECT_EQ(stuck.Connect(dark.address()), EINPROGRESS);
  const Socket listener, client;
  client.Connect(listener.Listen(8));
  ASSERT_TRUE(client.Await(POLLOUT));
  client.Send("hello");
  ASSERT_TRUE(listener.Await(POLLIN));
  const Socket served(::accept(listener.fd(), nullptr, nullptr));
  ASSERT_GE(served.fd(), 0) << "the proof did not come first";
  EXPECT_EQ(served.Receive(), "hello");
  // The kernel gives up by itself.
  ASSERT_TRUE(stuck.Await(POLLERR));
  int error = 0;
  socklen_t error_bytes = sizeof error;
  ASSERT_EQ(::getsockopt(stuck.fd(), SOL_SOCKET, SO_ERROR, &error, &error_bytes), 0);
  EXPECT_EQ(error, ETIMEDOUT);
}

TEST(UcxSocketGuard, AProofIsNotSentOnAnotherSocketOfTheSameDescriptor) {
  const UcxSocketGuard guard("secret");
  const UcxSocketGuard::Scope scope(guard);
  const DarkHost dark;
  const Socket listener, client;
  client.Connect(listener.Listen(8));
  ASSERT_TRUE(client.Await(POLLOUT));
  client.Send("hello");
  ASSERT_TRUE(listener.Await(POLLIN));
  Socket given_up;
  const int descriptor = given_up.fd();
  EXPECT_EQ(given_up.Connect(dark.address()), EINPROGRESS);
  given_up.Close();
  const Socket served(::accept(listener.fd(), nullptr, nullptr));
  ASSERT_EQ(served.fd(), descriptor);
  served.Send("welcome");
  EXPECT_EQ(client.Receive(), "welcome");
}

// As an arena's caller does, beside UCX on the same thread.
TEST(UcxSocketGuard, AProofIsNotSentOnALocalSocketOfTheSameDescriptor) {
  const DarkHost dark;
  const Socket listener(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  socklen_t bytes = sizeof address;
  // The system chooses an abstract name.
  ASSERT_EQ(::bind(listener.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)), 0);
  ASSERT_EQ(::listen(listener.fd(), 1), 0);
  ASSERT_EQ(::getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  const UcxSocketGuard guard("secret");
  const UcxSocketGuard::Scope scope(guard);  // after the listener, which is not UCX's
  Socket given_up;
  const int descriptor = given_up.fd();
  EXPECT_EQ(given_up.Connect(dark.address()), EINPROGRESS);
  given_up.Close();
  const Socket caller(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
  ASSERT_EQ(caller.fd(), descriptor);
  ASSERT_EQ(::connect(caller.fd(), reinterpret_cast<const sockaddr*>(&address), bytes), 0);
  caller.Send("ticket");
  const Socket served(::accept(listener.fd(), nullptr, nullptr));
  char received[100];
  const ssize_t got = ::recv(served.fd(), received, sizeof received, MSG_DONTWAIT);
  EXPECT_EQ(std::string(received, static_cast<size_t>(std::max<ssize_t>(0, got))), "ticket");
}

}  // namespace
}  // namespace tandem::transfer
