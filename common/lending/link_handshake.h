// How the two ends of a lending link prove to each other that they hold the fleet's secret, and
// agree on who they are. Three messages, none of them secret:
//
//   debtor    hello: nonce, debtor and creditor with incarnations, address dialled ─▶ creditor
//   debtor ◀─ challenge: nonce, tag over hello and nonce                               creditor
//   debtor    proof: tag over hello and challenge ─▶                                   creditor
//
// Tags are KeyedTags (HMAC-SHA-256 under the secret), with a purpose for each role that no other
// part of Tandem uses. Both nonces are in each tag after the hello, so no message can be used in
// another handshake. The hello names the creditor and the address (with its transport), so that a
// creditor refuses a hello that was made for another node, for an earlier run of its own, or for
// another of its sockets. A tag of one role is no tag of the other, so none can be reflected.
//
// Both ends derive the keys of this link's messages from the same bytes. With an empty secret
// anyone can make tags and keys; names, incarnations and addresses are still compared.
// Thread safety: none; pure state of one handshake. Owner: LinkDialer and LinkListener.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/base/node_id.h"
#include "common/lending/lending.h"

namespace tandem::lending {

// The longest handshake message, with room for two node ids of kNodeIdBytesMax and an address.
inline constexpr size_t kHandshakeBytesMax = 1024;

// Who is at the ends of a link, and the address that the debtor dialled.
struct LinkEnds {
  DebtorId debtor;
  DebtorId creditor;  // the creditor's node and incarnation
  std::string address;
};

// Keys of a link's two directions, kTcpLinkKeyBytes each.
struct LinkKeys {
  std::string debtor_to_creditor;
  std::string creditor_to_debtor;
};

class DebtorHandshake {
 public:
  // Errors: kInvalidArgument when a name or the address is too long.
  static absl::StatusOr<DebtorHandshake> Create(const std::string& secret, const LinkEnds& ends);
  const std::string& hello() const { return hello_; }
  // Takes the creditor's challenge and returns the proof. Errors: kPermissionDenied when the
  // creditor does not hold the secret.
  absl::StatusOr<std::string> Prove(absl::string_view challenge);
  // REQUIRES: Prove has succeeded.
  LinkKeys keys() const;

 private:
  DebtorHandshake(const std::string& secret, std::string hello)
      : secret_(secret), hello_(std::move(hello)) {}
  std::string secret_;
  std::string hello_;
  std::string transcript_;
};

class CreditorHandshake {
 public:
  // `self`: this node. `address`: of the socket on which the debtor came.
  CreditorHandshake(const std::string& secret, const DebtorId& self, const std::string& address)
      : secret_(secret), self_(self), address_(address) {}
  // Takes a hello and returns the challenge. Errors: kInvalidArgument when it is not well formed;
  // kFailedPrecondition when it was made for another node, incarnation or address.
  absl::StatusOr<std::string> Challenge(absl::string_view hello);
  // Errors: kPermissionDenied when the debtor does not hold the secret. REQUIRES: Challenge has
  // succeeded.
  absl::Status Check(absl::string_view proof) const;
  // As the hello said. REQUIRES: Check has succeeded.
  const DebtorId& debtor() const { return debtor_; }
  LinkKeys keys() const;

 private:
  std::string secret_;
  DebtorId self_;
  std::string address_;
  DebtorId debtor_;
  std::string transcript_;
};

}  // namespace tandem::lending
