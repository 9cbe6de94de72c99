// Checks while the simulation runs that the two ends of each loan agree (docs/LENDING.md):
//   - within a process, its core (Borrower, Lender) and its lending plane know the same loans;
//   - where both nodes know a loan, they name the same units and blocks;
//   - where one node alone knows it, it forgets it within the lease time and what it takes to act
//     on that (LoanLimits);
//   - a creditor holds references to the blocks of its loans, and to no others for loans;
//   - each unit of a sequence has one place: its blocks lie with its node, or under one loan.
// A node answers only for the time in which it runs: a stopped process can end nothing.
// Thread safety: none; the simulation's thread. Owner: the simulation.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/lending/lending.h"
#include "common/node/node_resources.h"
#include "sim/world/violations.h"

namespace tandem::sim {

// What one node, alive, says of its loans. The spans and pointers are valid until it runs again.
struct LoanParty {
  // As its lending plane serves them.
  struct Served {
    lending::LoanKey key;
    engine::UnitSpan units;
    absl::Span<const BlockId> blocks;
    absl::Time heard;  // the debtor last
  };
  // As its lending plane uses them.
  struct Used {
    LoanId loan;
    const lending::CreditorAddress* creditor = nullptr;
    absl::Time heard;   // the creditor last
    bool lost = false;  // and the core was told so
  };
  lending::DebtorId self;
  const node::NodeResources* resources = nullptr;
  absl::Time running;          // a clock that stands still while the process is stopped
  int64_t slowness_max = 1;    // by what factor its ticks and steps took longer at most, ever
  std::vector<Served> served;  // by key
  std::vector<Used> used;      // by loan
};

// How long a node may take for what; without its slowness.
struct LoanLimits {
  absl::Duration lease_time;
  absl::Duration tick;  // between two ticks
  absl::Duration hop;   // an event's way from a plane to the core
  absl::Duration step;  // a step of the engine
};

class LoanChecker {
 public:
  LoanChecker(RunLog& log, LoanLimits limits) : log_(log), limits_(limits) {}

  // Compares what all live nodes say now. REQUIRES: no node is in the middle of an event.
  void Check(absl::Span<const LoanParty> parties);
  // Whether a loan was one-sided when Check was last called.
  bool follows_any() const { return !since_.empty(); }

 private:
  using CoreDebts = std::map<LoanId, node::Borrower::LoanView>;
  using CoreCredits = std::map<lending::LoanKey, node::Lender::LoanView>;
  struct Ends {
    const LoanParty* party;
    CoreDebts debts;
    CoreCredits credits;
  };
  // What may last for a while only.
  enum class State {
    kCreditorAlone,  // it serves a loan that no debtor uses
    kOffered,        // it fetches a loan that it will offer
    kDebtorAlone,    // it uses a loan that no creditor serves
    kOfNoUse,        // the debtor's core keeps a loan that is lost, or that no sequence has
    kUsedUnfilled,   // the creditor does not know yet that all blocks have arrived
  };
  struct Case {
    State state;
    lending::LoanKey key;
    lending::DebtorId creditor;
    friend bool operator<(const Case& a, const Case& b) {
      return std::tie(a.state, a.key, a.creditor) < std::tie(b.state, b.key, b.creditor);
    }
  };
  struct Since {
    absl::Time running;  // by the clock of the node that has to end it
    absl::Time heard;
    int64_t at_us = 0;
    bool reported = false;
  };

  void CheckDebtor(const Ends& ends);
  void CheckPlaces(const Ends& ends, const node::Sequence& sequence);
  void CheckCreditor(const Ends& ends);
  void CheckPair(const Ends& debtor, const LoanParty::Used& used, const Ends& creditor,
                 const LoanParty::Served& served);
  void CheckUsed(const Ends& debtor);
  void CheckServed(const Ends& creditor);
  // Notes that the case goes on; a violation when that is longer than `limit` of the running time
  // of `by` since it was first seen, or since `heard` changed. `ends`: what each end says.
  void Follow(const Case& what, const LoanParty& by, absl::Duration limit, absl::Time heard,
              absl::string_view ends);
  const Ends* Find(const lending::DebtorId& node) const;
  absl::Duration TickOf(const LoanParty& party) const {
    return limits_.tick * party.slowness_max + limits_.hop;
  }
  void Violate(std::string what) { log_.Violate("loans", std::move(what)); }

  RunLog& log_;
  const LoanLimits limits_;
  std::vector<Ends> ends_;  // of the running Check
  std::map<Case, Since> since_, next_since_;
};

}  // namespace tandem::sim
