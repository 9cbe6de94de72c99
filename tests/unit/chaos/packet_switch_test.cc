// Goal: packets reach the port they are addressed to, and a link that is cut, slow or lossy does to
// them what it is told, in one direction only; bytes that are no packets change nothing.
#include "cli/chaos/packet_switch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>

namespace tandem::cli {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(LinkTable, CutsOneDirection) {
  LinkTable table(3, 1);
  table.Set(0, 1, {.cut = true});
  EXPECT_FALSE(table.Arrival(0, 1, 100, kStart).has_value());
  EXPECT_EQ(table.Arrival(1, 0, 100, kStart), kStart);
  EXPECT_EQ(table.Arrival(0, 2, 100, kStart), kStart);
  table.Set(0, 1, {});
  EXPECT_EQ(table.Arrival(0, 1, 100, kStart), kStart);
}

TEST(LinkTable, ASlowLinkHoldsPacketsBackInOrderAndDropsTheRest) {
  LinkTable table(2, 1);
  table.Set(0, 1, {.bytes_per_second = 10'000});
  EXPECT_EQ(table.Arrival(0, 1, 1000, kStart), kStart + absl::Milliseconds(100));
  EXPECT_EQ(table.Arrival(0, 1, 1000, kStart), kStart + absl::Milliseconds(200));
  EXPECT_EQ(table.Arrival(0, 1, 2000, kStart), kStart + absl::Milliseconds(400));
  EXPECT_FALSE(table.Arrival(0, 1, 1000, kStart).has_value()) << "more than is held back";
  EXPECT_EQ(table.Arrival(1, 0, 1000, kStart), kStart);
  // Fast again: behind what is still held.
  table.Set(0, 1, {});
  EXPECT_EQ(table.Arrival(0, 1, 1000, kStart), kStart + absl::Milliseconds(400));
  EXPECT_EQ(table.Arrival(0, 1, 1000, kStart + absl::Seconds(1)), kStart + absl::Seconds(1));
}

TEST(LinkTable, LosesItsShareOfPackets) {
  LinkTable table(2, 17);
  table.Set(0, 1, {.lost_of_thousand = 100});
  int lost = 0;
  for (int i = 0; i < 10'000; ++i) lost += table.Arrival(0, 1, 100, kStart).has_value() ? 0 : 1;
  // A tenth, by more than eight standard deviations.
  EXPECT_GT(lost, 750);
  EXPECT_LT(lost, 1250);
}

// A device stood in for by a pair of sockets that keep packets apart.
struct Device {
  Device() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    network = fds[0];
    host = fds[1];
  }
  ~Device() {
    close(network);
    close(host);
  }
  void Send(const std::string& packet) const {
    EXPECT_EQ(write(host, packet.data(), packet.size()), static_cast<ssize_t>(packet.size()));
  }
  std::string Receive() const {
    pollfd fd = {host, POLLIN, 0};
    if (poll(&fd, 1, 10'000) <= 0) return "nothing came";
    char buffer[4096];
    const ssize_t bytes = read(host, buffer, sizeof(buffer));
    return std::string(buffer, static_cast<size_t>(bytes));
  }
  int network = -1, host = -1;
};

std::string Packet(int to_port, const std::string& body) {
  std::string packet(20, '\0');
  packet[0] = 0x45;
  packet[16] = 10;
  packet[17] = 78;
  packet[19] = static_cast<char>(to_port + 1);
  return packet + body;
}

TEST(PacketSwitch, CarriesPacketsToTheirPorts) {
  std::array<Device, 3> devices;
  const auto packets =
      PacketSwitch::Start({devices[0].network, devices[1].network, devices[2].network}, /*seed=*/1);
  devices[0].Send(Packet(1, "one"));
  EXPECT_EQ(devices[1].Receive(), Packet(1, "one"));
  packets->Set(0, 1, {.cut = true});
  devices[0].Send(Packet(1, "lost"));
  devices[0].Send("no packet");
  devices[0].Send(Packet(77, "to no port"));
  devices[0].Send(Packet(2, "two"));
  EXPECT_EQ(devices[2].Receive(), Packet(2, "two"));
  // Those before it in the same device have been dealt with.
  packets->Set(0, 1, {});
  devices[0].Send(Packet(1, "three"));
  EXPECT_EQ(devices[1].Receive(), Packet(1, "three"));
  EXPECT_GE(packets->counts().passed, 2) << "the last one may not be counted yet";
  EXPECT_EQ(packets->counts().lost, 1);
}

TEST(PacketSwitch, ASlowLinkDeliversInTheEnd) {
  std::array<Device, 2> devices;
  const auto packets = PacketSwitch::Start({devices[0].network, devices[1].network}, 1);
  packets->Set(0, 1, {.bytes_per_second = 100'000});
  for (const char* body : {"a", "b", "c"}) devices[0].Send(Packet(1, body));
  for (const char* body : {"a", "b", "c"}) EXPECT_EQ(devices[1].Receive(), Packet(1, body));
}

}  // namespace
}  // namespace tandem::cli
