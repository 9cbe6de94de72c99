// Goal: a lending link opens only between the two processes that meant each other and hold the
// secret; messages of one handshake are of no use in another.
#include "common/lending/link_handshake.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/lending/link_dialer.h"
#include "common/lending/link_listener.h"
#include "common/runtime/clock.h"
#include "tests/unit/lending/lending_world.h"

namespace tandem::lending {
namespace {

using transfer::OwnedDescriptor;

const DebtorId kDebtor = {.node = NodeId("d"), .incarnation = Incarnation(1)};
const DebtorId kCreditor = {.node = NodeId("c"), .incarnation = Incarnation(2)};
constexpr char kAddress[] = "tcp:127.0.0.1:1";

DebtorHandshake Debtor(const std::string& secret = "s", const DebtorId& creditor = kCreditor,
                       const std::string& address = kAddress) {
  return *DebtorHandshake::Create(secret,
                                  {.debtor = kDebtor, .creditor = creditor, .address = address});
}
CreditorHandshake Creditor(const std::string& secret = "s") {
  return CreditorHandshake(secret, kCreditor, kAddress);
}

TEST(LinkHandshakeTest, BothEndsAgreeOnNamesAndKeysWhichAreNewEachTime) {
  std::vector<std::string> seen;
  for (const std::string secret : {"s", "", "s"}) {
    DebtorHandshake debtor = Debtor(secret);
    CreditorHandshake creditor = Creditor(secret);
    const std::string challenge = *creditor.Challenge(debtor.hello());
    ASSERT_TRUE(creditor.Check(*debtor.Prove(challenge)).ok());
    EXPECT_EQ(creditor.debtor(), kDebtor);
    EXPECT_EQ(debtor.keys().debtor_to_creditor, creditor.keys().debtor_to_creditor);
    EXPECT_EQ(debtor.keys().creditor_to_debtor, creditor.keys().creditor_to_debtor);
    EXPECT_NE(debtor.keys().creditor_to_debtor, debtor.keys().debtor_to_creditor);
    for (const std::string& key : seen) EXPECT_NE(key, debtor.keys().debtor_to_creditor);
    seen.push_back(debtor.keys().debtor_to_creditor);
  }
}

TEST(LinkHandshakeTest, NeitherEndAcceptsAnotherSecret) {
  DebtorHandshake debtor = Debtor("another");
  CreditorHandshake creditor = Creditor();
  const std::string challenge = *creditor.Challenge(debtor.hello());
  EXPECT_EQ(debtor.Prove(challenge).status().code(), absl::StatusCode::kPermissionDenied);
  // One that goes on all the same can only guess.
  CreditorHandshake accomplice = Creditor("another");
  DebtorHandshake with_accomplice = Debtor("another");
  const std::string proof = *with_accomplice.Prove(*accomplice.Challenge(with_accomplice.hello()));
  EXPECT_EQ(creditor.Check(proof).code(), absl::StatusCode::kPermissionDenied);
}

TEST(LinkHandshakeTest, ARecordedHandshakeIsOfNoUse) {
  DebtorHandshake debtor = Debtor();
  CreditorHandshake creditor = Creditor();
  const std::string challenge = *creditor.Challenge(debtor.hello());
  const std::string proof = *debtor.Prove(challenge);
  // Played to the creditor again, and its challenge to the debtor's next handshake.
  CreditorHandshake next_creditor = Creditor();
  EXPECT_NE(*next_creditor.Challenge(debtor.hello()), challenge);
  EXPECT_FALSE(next_creditor.Check(proof).ok());
  EXPECT_FALSE(Debtor().Prove(challenge).ok());
}

TEST(LinkHandshakeTest, AReflectedMessageIsRefused) {
  // Both nodes lend to each other: what one says as a debtor is sent back to it as a creditor.
  DebtorHandshake debtor = Debtor();
  CreditorHandshake own(std::string("s"), kDebtor, kAddress);
  EXPECT_EQ(own.Challenge(debtor.hello()).status().code(), absl::StatusCode::kFailedPrecondition);
  // A creditor's tag is no debtor's: its own challenge is no proof.
  CreditorHandshake creditor = Creditor();
  const std::string challenge = *creditor.Challenge(debtor.hello());
  EXPECT_FALSE(creditor.Check(challenge.substr(challenge.size() - 32)).ok());
  EXPECT_FALSE(debtor.Prove(debtor.hello().substr(0, challenge.size())).ok());
}

TEST(LinkHandshakeTest, AHelloForAnotherNodeRunOrAddressIsRefused) {
  const DebtorId other = {.node = NodeId("x"), .incarnation = kCreditor.incarnation};
  const DebtorId earlier = {.node = kCreditor.node, .incarnation = Incarnation(1)};
  for (const std::string& hello :
       {Debtor("s", other).hello(), Debtor("s", earlier).hello(),
        Debtor("s", kCreditor, "tcp:127.0.0.1:2").hello(), Debtor("s", kCreditor, "unix:x").hello(),
        Debtor("", other).hello()}) {
    EXPECT_EQ(Creditor().Challenge(hello).status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(Creditor("").Challenge(hello).status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(LinkHandshakeTest, EveryCutOrChangedMessageIsRefused) {
  DebtorHandshake debtor = Debtor();
  CreditorHandshake creditor = Creditor();
  const std::string hello = debtor.hello(), challenge = *creditor.Challenge(hello);
  const std::string proof = *debtor.Prove(challenge);
  for (size_t i = 0; i < hello.size(); ++i) {
    EXPECT_FALSE(Creditor().Challenge(hello.substr(0, i)).ok());
    std::string changed = hello;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    CreditorHandshake other = Creditor();
    const auto answer = other.Challenge(changed);
    // A changed nonce or debtor is not seen in the hello; the tag over it does not fit then.
    if (answer.ok()) {
      EXPECT_FALSE(debtor.Prove(*answer).ok()) << i;
    }
  }
  EXPECT_FALSE(Creditor().Challenge(hello + "x").ok());
  for (size_t i = 0; i < challenge.size(); ++i) {
    EXPECT_FALSE(debtor.Prove(challenge.substr(0, i)).ok());
    std::string changed = challenge;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(Debtor().Prove(changed).ok());
    EXPECT_FALSE(debtor.Prove(changed).ok());
  }
  for (size_t i = 0; i < proof.size(); ++i) {
    EXPECT_FALSE(creditor.Check(proof.substr(0, i)).ok());
    std::string changed = proof;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(creditor.Check(changed).ok());
  }
  EXPECT_TRUE(creditor.Check(proof).ok());
}

TEST(LinkHandshakeTest, NamesThatAreTooLongAreRefused) {
  DebtorId longest = kCreditor;
  longest.node = NodeId(std::string(kNodeIdBytesMax, 'n'));
  const std::string address = "unix:" + std::string(kLinkAddressBytesMax - 5, 'a');
  const LinkEnds ends = {.debtor = longest, .creditor = longest, .address = address};
  const auto debtor = DebtorHandshake::Create("s", ends);
  ASSERT_TRUE(debtor.ok());
  EXPECT_LE(debtor->hello().size(), kHandshakeBytesMax);
  EXPECT_TRUE(CreditorHandshake("s", longest, address).Challenge(debtor->hello()).ok());
  LinkEnds longer = ends;
  longer.debtor.node = NodeId(std::string(kNodeIdBytesMax + 1, 'n'));
  EXPECT_FALSE(DebtorHandshake::Create("s", longer).ok());
}

// ---- on sockets ------------------------------------------------------------------------------

class ListenerTest : public testing::Test {
 protected:
  std::unique_ptr<LinkListener> Listen() {
    return *LinkListener::Start({.self = kCreditor, .fleet_secret = "s", .tcp_host = "127.0.0.1"});
  }
  CreditorAddress At(const std::string& address) const {
    return {.node = kCreditor.node,
            .incarnation = kCreditor.incarnation,
            .host = "host",
            .lending_address = address};
  }
  std::unique_ptr<LinkDialer> Dial(const std::string& address, const std::string& host) {
    return *LinkDialer::Start({.self = kDebtor, .host = host, .fleet_secret = "s"}, At(address),
                              now_);
  }
  absl::Time now_ = absl::UnixEpoch();
};

// Goes on with the link from both ends until it is there. The listener's clock may be ahead.
DebtorId OpenLink(LinkListener& listener, LinkDialer& dialer, absl::Time now,
                  absl::Time listener_now) {
  std::vector<LinkListener::NewLink> made;
  std::unique_ptr<transfer::MessageLink> link;
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while ((made.empty() || link == nullptr) && absl::Now() < give_up) {
    for (auto& one : listener.Progress(listener_now)) made.push_back(std::move(one));
    if (link != nullptr) continue;
    auto polled = dialer.Poll(now);
    if (!polled.ok()) {
      ADD_FAILURE() << polled.status();
      return {};
    }
    link = *std::move(polled);
  }
  return made.empty() ? DebtorId() : made[0].debtor;
}

TEST_F(ListenerTest, CallersThatProveNothingAreDroppedInTimeAndOthersGetIn) {
  const size_t descriptors = NumDescriptors();
  {
    const auto listener = Listen();
    const LinkAddress address = *ParseLinkAddress(listener->address());
    std::vector<OwnedDescriptor> silent;
    for (size_t i = 0; i < LinkListener::kCallersMax; ++i) {
      silent.push_back(*ConnectForLink(i % 2 == 0 ? address.local : address.tcp));
    }
    while (listener->next_time() == absl::InfiniteFuture() ||
           NumDescriptors() < descriptors + 3 + 2 * LinkListener::kCallersMax) {
      EXPECT_TRUE(listener->Progress(now_).empty());
    }
    pollfd wait = {.fd = listener->descriptor(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&wait, 1, 0), 0) << "they must not keep the lending thread awake";
    EXPECT_EQ(listener->next_time(), now_ + LinkListener::kCallerTime);
    EXPECT_EQ(listener->refused(), 0);
    const absl::Time later = now_ + LinkListener::kCallerTime;
    EXPECT_TRUE(listener->Progress(later).empty());
    EXPECT_EQ(listener->refused(), static_cast<int64_t>(LinkListener::kCallersMax));
    const auto dialer = Dial(listener->address(), "host");
    EXPECT_EQ(OpenLink(*listener, *dialer, now_, later), kDebtor);
  }
  EXPECT_EQ(NumDescriptors(), descriptors);
}

// A connection to the listener from another address of this machine.
OwnedDescriptor ConnectFrom(const char* from, const std::string& tcp) {
  OwnedDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  ::inet_pton(AF_INET, from, &address.sin_addr);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(tcp.substr(tcp.rfind(':') + 1))));
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return socket;
}

// The stranger opens more connections all the time, before and while the debtor proves itself. The
// clock stands: no caller's time is over.
TEST_F(ListenerTest, AStrangerThatTakesAllPlacesKeepsNoDebtorOfAnotherAddressOut) {
  const auto listener = Listen();
  const LinkAddress address = *ParseLinkAddress(listener->address());
  std::vector<OwnedDescriptor> silent;
  const auto flood = [&] {
    for (size_t i = 0; i < 2 * LinkListener::kCallersMax + 1; ++i)
      silent.push_back(ConnectFrom("127.0.0.2", address.tcp));
  };
  flood();
  for (const std::string host : {"elsewhere", "host"}) {
    SCOPED_TRACE(host);
    const int64_t refused = listener->refused();
    const auto dialer = Dial(listener->address(), host);
    EXPECT_EQ(*dialer->Poll(now_), nullptr);
    for (int i = 0; i < 3; ++i) {
      flood();
      for (int turn = 0; turn < 4; ++turn) EXPECT_TRUE(listener->Progress(now_).empty());
    }
    EXPECT_EQ(OpenLink(*listener, *dialer, now_, now_), kDebtor);
    EXPECT_GT(listener->refused(), refused);
  }
}

// Of one address, too, the newcomer gets in.
TEST_F(ListenerTest, WhoSaysNothingMakesPlaceForOthersOfItsAddress) {
  const auto listener = Listen();
  const LinkAddress address = *ParseLinkAddress(listener->address());
  std::vector<OwnedDescriptor> silent;
  for (size_t i = 0; i < 2 * LinkListener::kCallersMax; ++i)
    silent.push_back(ConnectFrom("127.0.0.1", address.tcp));
  const auto dialer = Dial(listener->address(), "elsewhere");
  EXPECT_EQ(OpenLink(*listener, *dialer, now_, now_), kDebtor);
}

TEST_F(ListenerTest, GarbageIsRefusedOverBothKindsOfSockets) {
  const auto listener = Listen();
  const LinkAddress address = *ParseLinkAddress(listener->address());
  const std::string garbage[] = {std::string("\xff\xff", 2), std::string("\x05\0hello", 7),
                                 std::string("\0\0", 2), "GET / HTTP/1.1\r\n\r\n"};
  int64_t sent = 0;
  for (const std::string& bytes : garbage) {
    for (const std::string& where : {address.local, address.tcp}) {
      const OwnedDescriptor socket = *ConnectForLink(where);
      pollfd wait = {.fd = socket.get(), .events = POLLOUT, .revents = 0};
      ASSERT_EQ(::poll(&wait, 1, 10000), 1);
      ASSERT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(bytes.size()));
      ++sent;
      const absl::Time give_up = absl::Now() + absl::Seconds(20);
      while (listener->refused() < sent && absl::Now() < give_up) {
        EXPECT_TRUE(listener->Progress(now_).empty());
      }
      EXPECT_EQ(listener->refused(), sent);
    }
  }
}

TEST_F(ListenerTest, AHandshakeThatIsForwardedFromAnotherAddressIsRefused) {
  const auto listener = Listen();
  const LinkAddress address = *ParseLinkAddress(listener->address());
  // A relay that passes every byte on, at a port of its own.
  ListeningSocket relay = *ListenForTcpLinks("127.0.0.1", 4);
  const auto dialer = Dial(absl::StrCat("unix:nobody ", relay.address), "elsewhere");
  OwnedDescriptor to_debtor, to_creditor = *ConnectForLink(address.tcp);
  const auto forward = [](int from, int to) {
    char bytes[2048];
    const ssize_t got = ::recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) {
      EXPECT_EQ(::send(to, bytes, static_cast<size_t>(got), MSG_NOSIGNAL), got);
    }
    if (got == 0) ::shutdown(to, SHUT_RDWR);
  };
  absl::Status status;
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while (status.ok() && absl::Now() < give_up) {
    if (to_debtor.get() < 0) {
      to_debtor = OwnedDescriptor(::accept4(relay.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    } else {
      forward(to_debtor.get(), to_creditor.get());
      forward(to_creditor.get(), to_debtor.get());
    }
    EXPECT_TRUE(listener->Progress(now_).empty());
    const auto link = dialer->Poll(now_);
    status = link.status();
    if (link.ok()) {
      EXPECT_EQ(*link, nullptr);
    }
  }
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(listener->refused(), 1);
}

TEST_F(ListenerTest, ADialerGivesUpInTimeAndAnAddressIsChecked) {
  ListeningSocket silent = *ListenForTcpLinks("127.0.0.1", 4);
  const auto dialer = Dial(absl::StrCat("unix:nobody ", silent.address), "elsewhere");
  EXPECT_EQ(*dialer->Poll(now_ + LinkDialer::kDialTime - absl::Nanoseconds(1)), nullptr);
  EXPECT_EQ(dialer->Poll(now_ + LinkDialer::kDialTime).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ListenForTcpLinks("not an address", 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ParseLinkAddress("unix:a tcp:[::1]:5").ok());
  for (const char* text : {"", "tcp:1.2.3.4:5", "unix:a tcp", "unix:a ", "unix:a unix:b"}) {
    EXPECT_FALSE(ParseLinkAddress(text).ok()) << text;
  }
}

}  // namespace
}  // namespace tandem::lending
