--------------------------------- MODULE access ---------------------------------
(* Access: an organization that is deleted and created again while one of its API keys is revoked.

   One organization, one key, one access line, and keepers that run the jobs of the organization. Access depends on no
   generation, so none is here. docs/how-it-works.md says the same in plain English (rule 15).

   A rule holds where `Rule("...")` stands; `Off` names the rules that are switched off.                              *)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Keepers,
  Compaction,   \* TRUE: the key is revoked by a tombstone, and Kafka may later remove it with the events before it
  Changes,      \* how many events of the organization Kafka holds
  MaxCrashes,   \* of the line and the keepers; 99: any number
  MaxMoves,     \* how often the organization's slot moves to another shard during a pass over all keys
  Off

Rule(name) == name \notin Off

(* Its keys may be stored before the organization is heard of. While it is replayed, it may change. *)
OrganizationEvents == SubSeq(<<"deleted", "on", "on", "deleted", "on">>, 1, Changes)
KeyEvents == <<"active", "revoked">>

VARIABLES
  organization,  \* [version, live, due]; due is a flag in the organization's own record: "-"; "erase", if it is deleted;
                 \* "replay", if it was created again
  key,           \* [version, status]; status: "none", "active" or "revoked"
  at,            \* how many events of each topic the line has applied; it may apply any of them again
  pending,       \* the job that the line adds before it goes on
  ends,          \* how many events of the key were published
  compacted,     \* whether Kafka has removed them
  jobs,          \* the set of jobs: <<verb, version of the organization>>
  keeper,        \* what each keeper is doing
  spent
vars == <<organization, key, at, pending, ends, compacted, jobs, keeper, spent>>

Resting == [pc |-> "idle"]
NoJob == <<"none", 0>>
Job(verb, version) == <<verb, IF Rule("job-version") THEN version ELSE 0>>

Init == /\ organization = [version |-> 0, live |-> FALSE, due |-> "-"]
        /\ key = [version |-> 0, status |-> "none"]
        /\ at = [organization |-> 0, key |-> 0]
        /\ pending = NoJob
        /\ ends = 0
        /\ compacted = FALSE
        /\ jobs = {}
        /\ keeper = [k \in Keepers |-> Resting]
        /\ spent = [crashes |-> 0, moves |-> 0]

Deleted == organization.version > 0 /\ ~organization.live
ReplayDue == organization.due = "replay"

(* ---- The scripts ------------------------------------------------------------------------------------------------- *)

(* Event i of the key. A put for a deleted organization is dropped; a revocation is kept if the key is stored. *)
PutKey(i) ==
  LET newer == i > key.version
      event == [version |-> i, status |-> KeyEvents[i]]
  IN key' = IF ~newer THEN key
            ELSE IF ~Deleted THEN event
            ELSE IF Rule("kept") /\ KeyEvents[i] = "revoked" /\ key.status # "none" THEN event
            ELSE key

(* Event i of the organization. *)
AfterPut(i) ==
  IF i <= organization.version THEN organization
  ELSE IF OrganizationEvents[i] = "deleted" THEN [version |-> i, live |-> FALSE, due |-> "erase"]
  ELSE [version |-> i, live |-> TRUE, due |-> IF Deleted THEN "replay" ELSE organization.due]

(* A job is done if the organization is still the one that it began with: then the flag is cleared. *)
Ends(verb, version) == IF Rule("same-organization") THEN organization.version = version ELSE organization.due = verb

(* ---- The line: each topic in its order, between the topics in any order ------------------------------------------- *)

Publish == /\ ends < Len(KeyEvents)
           /\ ends' = ends + 1
           /\ UNCHANGED <<organization, key, at, pending, compacted, jobs, keeper, spent>>

(* Kafka keeps a tombstone for a day, which is longer than any replay takes. *)
Compact == /\ Compaction /\ ~compacted /\ at.key = Len(KeyEvents)
           /\ ~ReplayDue /\ \A k \in Keepers : keeper[k].pc \notin {"read", "replay"}
           /\ compacted' = TRUE
           /\ UNCHANGED <<organization, key, at, pending, ends, jobs, keeper, spent>>

ApplyOrganization == /\ pending = NoJob /\ at.organization < Changes
                     /\ LET i == at.organization + 1
                            after == AfterPut(i)
                        IN /\ organization' = after
                           /\ IF after.due = "-"
                              THEN at' = [at EXCEPT !.organization = i] /\ UNCHANGED pending
                              ELSE /\ pending' = Job(IF after.live THEN "replay" ELSE "erase", after.version)
                                   /\ UNCHANGED at
                     /\ UNCHANGED <<key, ends, compacted, jobs, keeper, spent>>

AddJob == /\ pending # NoJob
          /\ jobs' = jobs \cup {pending}
          /\ pending' = NoJob
          /\ at' = [at EXCEPT !.organization = @ + 1]
          /\ UNCHANGED <<organization, key, ends, compacted, keeper, spent>>

ApplyKey == /\ at.key < ends
            /\ PutKey(at.key + 1)
            /\ at' = [at EXCEPT !.key = @ + 1]
            /\ UNCHANGED <<organization, pending, ends, compacted, jobs, keeper, spent>>

(* After a crash, and by a projector that slept, events are applied again. *)
ApplyKeyAgain == /\ ~compacted /\ \E i \in 1..at.key : PutKey(i)
                 /\ key' # key
                 /\ UNCHANGED <<organization, at, pending, ends, compacted, jobs, keeper, spent>>

MayCrash == MaxCrashes < 99 => spent.crashes < MaxCrashes
Crashed == spent' = IF MaxCrashes = 99 THEN spent ELSE [spent EXCEPT !.crashes = @ + 1]

LineCrashes == /\ pending # NoJob /\ MayCrash /\ Crashed
               /\ pending' = NoJob
               /\ UNCHANGED <<organization, key, at, ends, compacted, jobs, keeper>>

(* ---- Keepers run jobs. Two of them may run the same job: its lock expires while one sleeps. ----------------------- *)

(* A keeper reads the jobs, and takes all of a verb. Then it takes their lock, and reads what is due. *)
Take(k) == /\ keeper[k].pc = "idle"
           /\ \E verb \in {"erase", "replay"} :
                LET members == {job \in jobs : job[1] = verb} IN
                /\ members # {}
                /\ keeper' = [keeper EXCEPT ![k] = [pc |-> "taken", verb |-> verb, members |-> members,
                                                   version |-> 0, end |-> 0, next |-> 1]]
           /\ UNCHANGED <<organization, key, at, pending, ends, compacted, jobs, spent>>

Look(k) == /\ keeper[k].pc = "taken"
           /\ keeper' = [keeper EXCEPT ![k].pc =
                           IF keeper[k].verb = "erase" THEN IF Deleted THEN "scan" ELSE "check"
                           ELSE IF ReplayDue THEN "read" ELSE "check",
                         ![k].version = organization.version, ![k].end = IF Rule("end") THEN 0 ELSE ends]
           /\ UNCHANGED <<organization, key, at, pending, ends, compacted, jobs, spent>>

(* The job reads the version of the organization first and the end of the topic after it. *)
ReadEnd(k) == /\ keeper[k].pc = "read"
              /\ keeper' = [keeper EXCEPT ![k].pc = "replay",
                                          ![k].end = IF compacted THEN 0 ELSE IF Rule("end") THEN ends ELSE @,
                                          ![k].version = IF Rule("end") THEN @ ELSE organization.version]
              /\ UNCHANGED <<organization, key, at, pending, ends, compacted, jobs, spent>>

ReplayOne(k) == /\ keeper[k].pc = "replay" /\ keeper[k].next <= keeper[k].end
                /\ PutKey(keeper[k].next)
                /\ keeper' = [keeper EXCEPT ![k].next = @ + 1]
                /\ UNCHANGED <<organization, at, pending, ends, compacted, jobs, spent>>

(* A pass over all keys finds the key, or nothing; or it misses the key, because its slot moved to a shard that the pass
   had already visited. *)
Scan(k) == /\ keeper[k].pc = "scan"
           /\ keeper' = [keeper EXCEPT ![k].pc = IF key.status = "none" THEN "finish" ELSE "erase"]
           /\ UNCHANGED <<organization, key, at, pending, ends, compacted, jobs, spent>>
ScanMisses(k) == /\ keeper[k].pc = "scan" /\ spent.moves < MaxMoves
                 /\ spent' = [spent EXCEPT !.moves = @ + 1]
                 /\ keeper' = [keeper EXCEPT ![k].pc = IF Rule("same-slots") THEN "scan" ELSE "finish"]
                 /\ UNCHANGED <<organization, key, at, pending, ends, compacted, jobs>>

(* It deletes what the pass has found, unless the organization was created again, and looks once more. *)
Erase(k) == /\ keeper[k].pc = "erase"
            /\ key' = IF Deleted THEN [version |-> 0, status |-> "none"] ELSE key
            /\ keeper' = [keeper EXCEPT ![k].pc = IF Deleted THEN "scan" ELSE "finish"]
            /\ UNCHANGED <<organization, at, pending, ends, compacted, jobs, spent>>

(* Otherwise the job stays, and is run again. *)
Finish(k) == /\ keeper[k].pc = "finish" \/ (keeper[k].pc = "replay" /\ keeper[k].next > keeper[k].end)
             /\ LET done == Ends(keeper[k].verb, keeper[k].version) IN
                /\ organization' = IF done THEN [organization EXCEPT !.due = "-"] ELSE organization
                /\ keeper' = [keeper EXCEPT ![k] = IF done THEN [@ EXCEPT !.pc = "check"] ELSE Resting]
             /\ UNCHANGED <<key, at, pending, ends, compacted, jobs, spent>>

(* The members that it has read are removed, unless the job is due: an event that makes it due adds another member. *)
Check(k) == /\ keeper[k].pc = "check"
            /\ keeper' = [keeper EXCEPT ![k] = IF organization.due = @.verb THEN Resting ELSE [@ EXCEPT !.pc = "remove"]]
            /\ UNCHANGED <<organization, key, at, pending, ends, compacted, jobs, spent>>
Remove(k) == /\ keeper[k].pc = "remove"
             /\ jobs' = jobs \ keeper[k].members
             /\ keeper' = [keeper EXCEPT ![k] = Resting]
             /\ UNCHANGED <<organization, key, at, pending, ends, compacted, spent>>

KeeperCrashes(k) == /\ keeper[k].pc # "idle" /\ MayCrash /\ Crashed
                    /\ keeper' = [keeper EXCEPT ![k] = Resting]
                    /\ UNCHANGED <<organization, key, at, pending, ends, compacted, jobs>>

Work(k) == Take(k) \/ Look(k) \/ ReadEnd(k) \/ ReplayOne(k) \/ Scan(k) \/ ScanMisses(k) \/ Erase(k) \/ Finish(k)
           \/ Check(k) \/ Remove(k)
Line == ApplyOrganization \/ AddJob \/ ApplyKey

(* ---- What must hold ---------------------------------------------------------------------------------------------- *)

(* The API lets the key pass. While a replay is due it answers 503. *)
Honoured == /\ organization.live
            /\ Rule("mark") => ~ReplayDue
            /\ key.status = "active"

(* A revoked key is never honoured again, once the line has applied its revocation, whatever the organization was then. *)
NeverAgain == at.key = Len(KeyEvents) => ~Honoured

Quiet == /\ jobs = {} /\ pending = NoJob /\ \A k \in Keepers : keeper[k].pc = "idle"
         /\ at.organization = Changes /\ at.key = Len(KeyEvents)

(* Nothing of a deleted organization is left when its erasure is done. *)
NothingLeft == Deleted /\ organization.due = "-" => key.status = "none"

(* No dead end: at last no job is due, and the organization and its key are what their newest events say. *)
Well == /\ Quiet /\ organization.due = "-"
        /\ organization.live = (OrganizationEvents[Changes] = "on")
        /\ key.status \in IF ~organization.live THEN {"none"} ELSE IF compacted THEN {"none", "revoked"} ELSE {"revoked"}
Recovers == <>[]Well

Rest == Well /\ UNCHANGED vars
Next == \/ Publish \/ Compact \/ Line \/ ApplyKeyAgain \/ LineCrashes
        \/ \E k \in Keepers : Work(k) \/ KeeperCrashes(k)
        \/ Rest
Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ WF_vars(Publish) /\ WF_vars(Line) /\ \A k \in Keepers : WF_vars(Work(k))

Twins == Permutations(Keepers)
=================================================================================
