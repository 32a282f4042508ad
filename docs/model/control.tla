-------------------------------- MODULE control --------------------------------
(* The control record of Leadview: what is served, written, covered and dropped.

   The protocol in plain English is docs/how-it-works.md. This module is the same protocol for TLC, which tries every
   order of every step of every process, with faults in between. The actions of each rule of the page:

     1 to 3    First, RollForward, Restore
     4, 5      Ask, Change, Roll, Counts, Overtaken; Give, BringBack
     6, 7      Open, Poll, Write; CoverOthers, CoverHome, GiveUp
     8 to 10   Fill, Decides, WakeUp; Fenced, Replay, FillReplayed, Replayed; Possible
     11        Close, Fenced, NewGeneration, Read, Sweep, Mark, Forget, Finish
     12, 13    Reconnect, Heartbeat
     14        Look, Answered; in slots.tla Answers, Assign, Add, Decide, WakeUp
     15        in access.tla
     16        in breaks.tla Note, Reach, Compare, PutRight

   A rule of the protocol holds where `Rule("...")` stands. `Off` names the rules that are switched off: TLC then finds
   the hole that the rule closes (tests/model).                                                                       *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Writers, Operators,  \* projectors, and operators' commands with the keepers that finish what those left
  OldPrograms,         \* those of the above whose program has mapping version 1; all others have 2
  OldGenerations,      \* the generations that were started with mapping version 1 before the beginning; all others with 2
  Commands,            \* what operators may ask for: a subset of {"rebuild", "flip", "drop"}
  Begin,               \* "running": a complete projection; "empty": neither a document nor a record
  Live, Written,       \* what a running projection begins with
  Applied, Recorded, Records,  \* how many records are applied at the beginning, how many Kafka holds then, and at most
  MaxGeneration,
  MaxCommands, MaxDeaths, MaxCrashes, MaxEmptied,  \* bounds; MaxCrashes = 99: any number
  Emptied,             \* which shards may lose everything at once, and Back: may go back in time at once: sets of shards
  Back, MaxBack,
  Slow,                \* before what a keeper may stand still: a subset of {"create", "roll", "fill"}
  Nonces,
  Off

Rule(name) == name \notin Off

(* ---- What there is ---------------------------------------------------------------------------------------------- *)

Shards == {"a", "b"}
Home == "a"
Other == "b"
Entities == {"x", "y"}                               \* x is stored in shard a, y in shard b
At(e) == IF e = "x" THEN "a" ELSE "b"
EntityIn(s) == IF s = "a" THEN "x" ELSE "y"
EntityOf(i) == IF i % 2 = 1 THEN "x" ELSE "y"        \* record i of Kafka is version i of its entity; a deletion is a
                                                     \* version like any other, because it leaves a marker
Generations == 1..MaxGeneration
Processes == Writers \cup Operators
MappingOf(part, g) == IF g \in part.old THEN 1 ELSE 2
ProgramOf(p) == IF p \in OldPrograms THEN 1 ELSE 2

VARIABLES
  end,         \* how many records Kafka holds
  copies,      \* the copy of the control record in each shard
  docs,        \* the documents: which version of each entity a generation holds (0: none), and whose mapping wrote it
  session,     \* of each process that writes documents
  op,          \* how far the command of each operator is
  registered,  \* the processes whose heartbeat is in the registry
  decided,     \* what a keeper has decided to do, which stands still before it does it
  saved,       \* of each shard, what a replica holds that has stopped following, or a backup
  born,        \* the last generation that ever began, also in what was lost: the source of identities
  made,        \* how many copies and lineages were ever made: the source of incarnations
  spent,       \* commands and faults so far
  seen,        \* the newest version of each entity that anyone may have been answered
  counted      \* the newest control part on which all copies agreed
vars == <<end, copies, docs, session, op, registered, decided, saved, born, made, spent, seen, counted>>

Max(a, b) == IF a > b THEN a ELSE b
Highest(set) == CHOOSE n \in set : \A m \in set : m <= n

(* ---- Control parts and copies ------------------------------------------------------------------------------------ *)

Stamp(part) == <<part.lineage, part.epoch, part.nonce>>
Above(p, q) == \/ p.lineage > q.lineage
               \/ p.lineage = q.lineage /\ p.epoch > q.epoch
               \/ p.lineage = q.lineage /\ p.epoch = q.epoch /\ p.nonce > q.nonce
Older(p, q) == p.lineage < q.lineage \/ (p.lineage = q.lineage /\ p.epoch < q.epoch)   \* of an older epoch
Known(part) == part.written \cup part.dropping

Missing == [incarnation |-> 0]
NoDocument == [version |-> 0, by |-> 0]
NoSession == [pc |-> "idle"]
NoCommand == [pc |-> "none"]
NotDecided == [kind |-> "none"]
NotSaved == [copy |-> "none"]

Present == {s \in Shards : copies[s] # Missing}
Parts == {copies[s].part : s \in Present}
Top == CHOOSE p \in Parts : \A q \in Parts : ~Above(q, p)
Agreed == Present = Shards /\ \A s, t \in Shards : Stamp(copies[s].part) = Stamp(copies[t].part)
Agreement == copies[Home].part                        \* the control part that all copies have, if they agree
Lowest == IF copies[Home].position < copies[Other].position THEN copies[Home].position ELSE copies[Other].position

(* A new copy: it knows nothing of its shard, and is filled with all generations that are written now. `needs` is the
   end of Kafka when it was made, which is the lowest end that a keeper can read after it saw this incarnation.        *)
NewCopy(part) == [part |-> part, incarnation |-> made + 1, filling |-> part.written, filled |-> {}, swept |-> {},
                  position |-> 0, needs |-> IF Rule("ends") THEN end ELSE Applied]

Forgotten(s, part) == Known(copies[s].part) \ Known(part)    \* generations that this copy knows, and that part does not

(* The script that gives a copy another control part. *)
Remade(s, part) == Rule("remake") /\ part.live \notin copies[s].filled \cup copies[s].filling
Given(s, part) == IF Remade(s, part) THEN NewCopy(part)
                  ELSE [copies[s] EXCEPT !.part = part, !.filled = @ \cap part.written, !.filling = @ \cap part.written,
                                         !.swept = @ \cap part.dropping]
Give(s, part) == /\ copies' = [copies EXCEPT ![s] = Given(s, part)]
                 /\ made' = made + (IF Remade(s, part) THEN 1 ELSE 0)

(* Two changes never get the same nonce. *)
InUse == Parts \cup {op[o].part : o \in {q \in Operators : op[q].pc # "none"}}
               \cup {session[p].part : p \in {q \in Processes : session[q].pc # "idle"}}
               \cup {saved[s].copy.part : s \in {r \in Shards : saved[r] # NotSaved /\ saved[r].copy # Missing}}
               \cup (IF decided.kind \in {"create", "roll"} THEN {decided.part} ELSE {})
Unused(part) == Nonces \ {q.nonce : q \in {r \in InUse : r.lineage = part.lineage /\ r.epoch = part.epoch}}
Successor(part, nonce) == [part EXCEPT !.epoch = @ + 1, !.nonce = nonce]

FirstPart(lineage, live, dropping) ==
  [lineage |-> lineage, epoch |-> 1, nonce |-> 0, live |-> live, written |-> {live}, dropping |-> dropping, last |-> live,
   old |-> {}]

(* A generation has an identity that no other one ever has: a number and something random. Without the rule, it is the
   number alone, and what was lost is not counted.                                                                    *)
NewGeneration(number) == IF Rule("identity") THEN born + 1 ELSE number

Init ==
  LET part == [FirstPart(1, Live, {}) EXCEPT !.written = Written, !.last = Highest(Written), !.old = OldGenerations]
      copy == [part |-> part, incarnation |-> 1, filling |-> {}, filled |-> Written, swept |-> {},
               position |-> Applied, needs |-> 0]
      newest(e) == Highest({0} \cup {i \in 1..Applied : EntityOf(i) = e})
      running == Begin = "running"
  IN /\ end = Recorded
     /\ copies = [s \in Shards |-> IF running THEN copy ELSE Missing]
     /\ docs = [g \in Generations |-> [e \in Entities |->
                  IF running /\ g \in Written /\ newest(e) > 0
                  THEN [version |-> newest(e), by |-> MappingOf(part, g)] ELSE NoDocument]]
     /\ session = [p \in Processes |-> NoSession]
     /\ op = [o \in Operators |-> NoCommand]
     /\ registered = Processes
     /\ decided = NotDecided
     /\ saved = [s \in Shards |-> NotSaved]
     /\ born = IF running THEN Highest(Written) ELSE 0
     /\ made = 1
     /\ spent = [commands |-> 0, deaths |-> 0, crashes |-> 0, emptied |-> 0, back |-> 0]
     /\ seen = [e \in Entities |-> IF running THEN newest(e) ELSE 0]
     /\ counted = part

Produce == /\ end < Records
           /\ end' = end + 1
           /\ UNCHANGED <<copies, docs, session, op, registered, decided, saved, born, made, spent>>

(* ---- Sessions: everybody who writes documents -------------------------------------------------------------------- *)

NewSession(pc, from, to) ==
  [pc |-> pc, part |-> Agreement, from |-> from, to |-> to, todo |-> (from + 1)..to,
   incarnations |-> [s \in Shards |-> copies[s].incarnation],
   open |-> Shards,  \* the shards to which the connections of this session are open
   lost |-> {}]      \* the shards whose replication id has changed since this session began

MayWrite(p) == Rule("mapping") => \A g \in Agreement.written : MappingOf(Agreement, g) <= ProgramOf(p)

Batch(p, to) == [session EXCEPT ![p] = NewSession("write", Lowest, to)]
Open(p) == /\ session[p].pc = "idle" /\ Agreed /\ MayWrite(p)
           /\ Lowest < Records
           /\ IF end = Records  \* no record will arrive while it is open: it may as well poll now
              THEN \E to \in (Lowest + 1)..end : session' = Batch(p, to)
              ELSE session' = [session EXCEPT ![p] = NewSession("open", Lowest, Lowest)]
           /\ UNCHANGED <<end, copies, docs, op, registered, decided, saved, born, made, spent>>

Poll(p) == /\ session[p].pc = "open" /\ session[p].from < end
           /\ \E to \in (session[p].from + 1)..end :
                session' = [session EXCEPT ![p].pc = "write", ![p].to = to, ![p].todo = (session[p].from + 1)..to]
           /\ UNCHANGED <<end, copies, docs, op, registered, decided, saved, born, made, spent>>

Target(p) == IF p \in Operators THEN {op[p].g} ELSE session[p].part.written

(* One script call writes a record in all generations, if its version is newer. *)
Write(p) == /\ session[p].pc = "write"
            /\ \E i \in session[p].todo :
                 LET e == EntityOf(i) IN
                 /\ At(e) \in session[p].open
                 /\ docs' = [g \in Generations |->
                      IF g \in Target(p) /\ (Rule("version") => docs[g][e].version < i)
                      THEN [docs[g] EXCEPT ![e] = [version |-> i, by |-> ProgramOf(p)]] ELSE docs[g]]
                 /\ session' = [session EXCEPT ![p].todo = @ \ {i}, ![p].pc =
                      IF session[p].todo # {i} THEN @ ELSE IF p \in Operators THEN "fill" ELSE "others"]
            /\ UNCHANGED <<end, copies, op, registered, decided, saved, born, made, spent>>

(* What a script of a session compares in the copy of its shard. *)
Agrees(p, s) == /\ copies[s] # Missing
                /\ Stamp(copies[s].part) = Stamp(session[p].part)
                /\ Rule("incarnation") => copies[s].incarnation = session[p].incarnations[s]
                /\ copies[s].position >= session[p].from

(* The checkpoint: the other copies first, home last. If one refuses, the batch is written again in a new session. *)
Cover(p, s, next) ==
  IF Agrees(p, s)
  THEN /\ copies' = [copies EXCEPT ![s].position = Max(@, session[p].to)]
       /\ session' = [session EXCEPT ![p] = IF next = "idle" THEN NoSession ELSE [@ EXCEPT !.pc = next]]
  ELSE /\ session' = [session EXCEPT ![p] = NoSession]
       /\ UNCHANGED copies
CoverOthers(p) == /\ session[p].pc = "others" /\ Other \in session[p].open
                  /\ Cover(p, Other, "home")
                  /\ UNCHANGED <<end, docs, op, registered, decided, saved, born, made, spent>>
CoverHome(p) == /\ session[p].pc = "home" /\ Home \in session[p].open
                /\ Cover(p, Home, "idle")
                /\ UNCHANGED <<end, docs, op, registered, decided, saved, born, made, spent>>

(* A connection that was closed is opened again. The session may go on only if nothing has changed since it began. *)
Valid(p) == Agreed /\ Stamp(Agreement) = Stamp(session[p].part)
Reconnect(p) == /\ session[p].pc # "idle" /\ session[p].open # Shards \ session[p].lost
                /\ Rule("reconnect") => Valid(p)
                /\ session' = [session EXCEPT ![p].open = Shards \ session[p].lost]
                /\ UNCHANGED <<end, copies, docs, op, registered, decided, saved, born, made, spent>>

(* A session that notices that it cannot go on ends. An idle one looks once a second. *)
Sound(p) == /\ session[p].open = Shards /\ Agreed /\ Stamp(Agreement) = Stamp(session[p].part)
            /\ \A s \in Shards : /\ copies[s].incarnation = session[p].incarnations[s]
                                /\ copies[s].position >= session[p].from
GiveUp(p) == /\ session[p].pc # "idle" /\ ~Sound(p)
             /\ session' = [session EXCEPT ![p] = NoSession]
             /\ UNCHANGED <<end, copies, docs, op, registered, decided, saved, born, made, spent>>

Crash(p) == /\ session[p].pc # "idle"
            /\ MaxCrashes < 99 => spent.crashes < MaxCrashes
            /\ spent' = IF MaxCrashes = 99 THEN spent ELSE [spent EXCEPT !.crashes = @ + 1]
            /\ session' = [session EXCEPT ![p] = NoSession]
            /\ UNCHANGED <<end, copies, docs, op, registered, decided, saved, born, made>>

Heartbeat(p) == /\ p \notin registered
                /\ registered' = registered \cup {p}
                /\ UNCHANGED <<end, copies, docs, session, op, decided, saved, born, made, spent>>

(* ---- Keepers ----------------------------------------------------------------------------------------------------- *)

(* A keeper decides what to do from what it has read, and may stand still before it does it. So each of these is checked
   again in the step that does it: by a script, in the copy.                                                          *)
Create(s, part) == IF copies[s] # Missing THEN UNCHANGED copies ELSE copies' = [copies EXCEPT ![s] = NewCopy(part)]

(* Every copy is missing: a new lineage. All named connections are closed first, also those over which a command deletes.
   What writers have written since Redis was emptied belongs to generations that the new record drops.                *)
Leftovers == IF Rule("leftovers") THEN {g \in Generations : \E e \in Entities : docs[g][e] # NoDocument} ELSE {}
NewRecord == FirstPart(IF Rule("lineage") THEN made + 1 ELSE 1, NewGeneration(Highest({0} \cup Leftovers) + 1), Leftovers)
Closed(o, shards) == IF op[o].pc = "none" THEN NoCommand ELSE [op[o] EXCEPT !.may = @ \ shards]
CloseAll == IF Rule("new-lineage")
            THEN /\ \E beginner \in Writers :  \* its other line may be in the middle of a batch, too
                      session' = [p \in Processes |->
                        IF session[p].pc = "idle" \/ (p = beginner /\ ~Rule("own")) THEN session[p]
                        ELSE [session[p] EXCEPT !.open = {}]]
                 /\ op' = [o \in Operators |-> IF Rule("sweep-fence") THEN Closed(o, Shards) ELSE op[o]]
            ELSE UNCHANGED <<session, op>>
First == /\ Present = {} /\ NewRecord.live \in Generations
         /\ CloseAll
         /\ \/ Create(Home, NewRecord) /\ UNCHANGED decided
            \/ /\ "create" \in Slow /\ decided = NotDecided
               /\ decided' = [kind |-> "create", shard |-> Home, part |-> NewRecord]
               /\ UNCHANGED copies
         /\ made' = made + 1
         /\ born' = Max(born, NewRecord.live)
         /\ UNCHANGED <<end, docs, registered, saved, spent>>

(* A listed copy is missing: its shard was emptied. With a rule off, it begins with a default, as before this protocol. *)
Restored == [Top EXCEPT !.live = IF Rule("live") THEN @ ELSE 1, !.written = IF Rule("written") THEN @ ELSE {1}]
Restore(s) == /\ copies[s] = Missing /\ Present # {}
              /\ Create(s, Restored)
              /\ made' = made + 1
              /\ UNCHANGED <<end, docs, session, op, registered, decided, saved, born, spent>>

RollForward(s) == /\ s \in Present /\ Above(Top, copies[s].part)
                  /\ Rule("bring-back") => Forgotten(s, Top) \subseteq copies[s].swept
                  /\ Give(s, Top)
                  /\ UNCHANGED <<end, docs, session, op, registered, decided, saved, born, spent>>

(* A copy knows generations that the highest control part does not, and they are not swept: a failover brought them back. *)
BringBack == /\ Rule("bring-back") /\ Home \in Present
             /\ \E s \in Present :
                  LET lost == Forgotten(s, Top) \ copies[s].swept IN
                  /\ Above(Top, copies[s].part) /\ lost # {}
                  /\ \E nonce \in Unused(Successor(Top, 0)) :
                       Give(Home, [Successor(Top, nonce) EXCEPT !.dropping = @ \cup lost, !.last = Max(@, copies[s].part.last)])
             /\ UNCHANGED <<end, docs, session, op, registered, decided, saved, born, spent>>

(* The positions of a shard have reached the ends that were read after its copy was made. *)
Filled(s) == (copies[s].filling \cap copies[s].part.written) \cup (IF Rule("live") THEN {} ELSE {copies[s].part.live})
MayFill(s) == /\ s \in Present /\ (Rule("reached") => copies[s].position >= copies[s].needs)
              /\ ~(Filled(s) \subseteq copies[s].filled)
Fill(s) == /\ MayFill(s)
           /\ copies' = [copies EXCEPT ![s].filled = @ \cup Filled(s)]
           /\ UNCHANGED <<end, docs, session, op, registered, decided, saved, born, made, spent>>

(* The keeper that stands still. *)
Decide(decision) == /\ decided = NotDecided /\ decision.kind \in Slow
                    /\ decided' = decision
                    /\ UNCHANGED <<end, copies, docs, session, op, registered, saved, born, made, spent>>
Decides(s) == \/ /\ copies[s] = Missing /\ Present # {}
                 /\ Decide([kind |-> "create", shard |-> s, part |-> Restored])
              \/ /\ s \in Present /\ Above(Top, copies[s].part)
                 /\ Decide([kind |-> "roll", shard |-> s, part |-> Top, read |-> Stamp(copies[s].part)])
              \/ /\ MayFill(s)
                 /\ Decide([kind |-> "fill", shard |-> s, filled |-> Filled(s), read |-> copies[s], same |-> TRUE])
WakeUp ==
  /\ decided # NotDecided
  /\ LET s == decided.shard IN
     CASE decided.kind = "create" -> Create(s, decided.part) /\ made' = made + 1
       [] decided.kind = "roll" ->
            IF /\ s \in Present /\ Stamp(copies[s].part) = decided.read
               /\ Rule("bring-back") => Forgotten(s, decided.part) \subseteq copies[s].swept
            THEN Give(s, decided.part) ELSE UNCHANGED <<copies, made>>
       [] decided.kind = "fill" ->
            /\ copies' = IF /\ s \in Present /\ copies[s].incarnation = decided.read.incarnation
                            /\ Rule("fill-as-read") => /\ decided.same /\ Stamp(copies[s].part) = Stamp(decided.read.part)
                                                       /\ copies[s].position >= decided.read.needs
                         THEN [copies EXCEPT ![s].filled = @ \cup decided.filled] ELSE copies
            /\ UNCHANGED made
  /\ decided' = NotDecided
  /\ UNCHANGED <<end, docs, session, op, registered, saved, born, spent>>

Keeper == First \/ BringBack \/ WakeUp \/ \E s \in Shards : Restore(s) \/ RollForward(s) \/ Fill(s) \/ Decides(s)

(* ---- Operators: a change is a compare-and-set at home, then rolled forward, and counts when all copies agree ------ *)

Changed(part, kind, g) ==
  CASE kind = "rebuild" -> [part EXCEPT !.written = @ \cup {g}, !.last = g, !.old = @ \ {g}]
    [] kind = "flip"    -> [part EXCEPT !.live = g]
    [] kind = "drop"    -> [part EXCEPT !.written = @ \ {g}, !.dropping = @ \cup {g}]
    [] kind = "forget"  -> [part EXCEPT !.dropping = @ \ {g}]
    [] kind = "note"    -> part  \* what is not modelled here, such as a break: only in traces (tests/model)

NewCommand(pc, kind, g, part) ==
  [pc |-> pc, kind |-> kind, g |-> g, base |-> Agreement, part |-> part, incarnation |-> copies[Home].incarnation,
   same |-> Shards,  \* the shards whose replication id is still that of the first read
   swept |-> {}, until |-> 0,
   may |-> {}]       \* the shards in which a drop may delete, as it has read, over connections that are still open

Possible(kind, g) ==
  CASE kind = "rebuild" -> g = NewGeneration(Agreement.last + 1) /\ g \notin Known(Agreement)
    [] kind = "flip"    -> /\ g \in Agreement.written \ {Agreement.live}
                           /\ \A s \in Shards : g \in copies[s].filled
    [] kind = "drop"    -> g \in Agreement.written \ {Agreement.live}
    [] kind = "note"    -> g = Agreement.live

(* An operator reads the copies; they agree. From here on the command may sleep at any step. *)
Ask(o) == /\ op[o].pc = "none" /\ Agreed /\ spent.commands < MaxCommands
          /\ \E kind \in Commands, g \in Generations :
               /\ Possible(kind, g)
               /\ \E nonce \in Unused(Successor(Agreement, 0)) :
                    op' = [op EXCEPT ![o] = NewCommand("change", kind, g, Successor(Changed(Agreement, kind, g), nonce))]
               /\ born' = IF kind = "rebuild" THEN Max(born, g) ELSE born
          /\ spent' = [spent EXCEPT !.commands = @ + 1]
          /\ UNCHANGED <<end, copies, docs, session, registered, decided, saved, made>>

AfterCount(o) == IF op[o].kind = "rebuild" THEN [op[o] EXCEPT !.pc = "fence", !.base = op[o].part] ELSE NoCommand

Change(o) ==
  /\ op[o].pc = "change"
  /\ IF /\ Home \in Present
        /\ Rule("compare") => Stamp(copies[Home].part) = Stamp(op[o].base) /\ copies[Home].incarnation = op[o].incarnation
        /\ Rule("operator-history") => Home \in op[o].same
        /\ op[o].kind = "forget" /\ Rule("swept") => op[o].g \in copies[Home].swept
     THEN /\ Give(Home, op[o].part)
          /\ op' = [op EXCEPT ![o] = IF Rule("counts") THEN [@ EXCEPT !.pc = "roll"] ELSE AfterCount(o)]
     ELSE /\ op' = [op EXCEPT ![o] = NoCommand]
          /\ UNCHANGED <<copies, made>>
  /\ UNCHANGED <<end, docs, session, registered, decided, saved, born, spent>>

Roll(o) == /\ op[o].pc = "roll" /\ Other \in Present
           /\ IF Rule("exact") THEN Stamp(copies[Other].part) = Stamp(op[o].base)
                               ELSE Above(op[o].part, copies[Other].part)
           /\ Rule("bring-back") => Forgotten(Other, op[o].part) \subseteq copies[Other].swept
           /\ Give(Other, op[o].part)
           /\ UNCHANGED <<end, docs, session, op, registered, decided, saved, born, spent>>

Counts(o) == /\ op[o].pc = "roll" /\ Agreed /\ Stamp(Agreement) = Stamp(op[o].part)
             /\ op' = [op EXCEPT ![o] = AfterCount(o)]
             /\ UNCHANGED <<end, copies, docs, session, registered, decided, saved, born, made, spent>>

(* The record has gone on without this command: it ends with a clear message, or a keeper begins again. *)
Overtaken(o) == CASE op[o].pc = "roll" -> ~(/\ \E s \in Present : Stamp(copies[s].part) = Stamp(op[o].part)
                                            /\ \A s \in Present : ~Above(copies[s].part, op[o].part))
                  [] op[o].pc \in {"fence", "sweep"} -> ~(/\ Agreed /\ Stamp(Agreement) = Stamp(op[o].base)
                                                         /\ op[o].same = Shards)
                  [] op[o].pc = "replay" -> Agreed /\ op[o].g \notin Agreement.written
                  [] OTHER -> FALSE
End(o) == /\ Overtaken(o)
          /\ op' = [op EXCEPT ![o] = NoCommand]
          /\ session' = [session EXCEPT ![o] = NoSession]
          /\ UNCHANGED <<end, copies, docs, registered, decided, saved, born, made, spent>>

Die(o) == /\ op[o].pc # "none" /\ spent.deaths < MaxDeaths
          /\ spent' = [spent EXCEPT !.deaths = @ + 1]
          /\ op' = [op EXCEPT ![o] = NoCommand]
          /\ session' = [session EXCEPT ![o] = NoSession]
          /\ UNCHANGED <<end, copies, docs, registered, decided, saved, born, made>>

(* The fence: all sessions of an older epoch have ended, or their connections are closed. *)
InTheWay(o) == {p \in Processes \ {o} : /\ session[p].pc # "idle" /\ session[p].open # {}
                                        /\ Older(session[p].part, op[o].base)
                                        /\ Rule("connections") \/ p \in registered}
Close(o, p) == /\ op[o].pc = "fence" /\ p \in InTheWay(o)
               /\ session' = [session EXCEPT ![p].open = {}]
               /\ UNCHANGED <<end, copies, docs, op, registered, decided, saved, born, made, spent>>

Fenced(o) ==
  /\ op[o].pc = "fence"
  /\ CASE op[o].kind = "forget" -> /\ Rule("fence") => InTheWay(o) = {}
                                   /\ op' = [op EXCEPT ![o].pc = "sweep"]
       [] OTHER ->                 /\ Rule("target") => InTheWay(o) = {}
                                   /\ ~Rule("target") => Present = Shards
                                   /\ op' = [op EXCEPT ![o].pc = "replay",
                                        ![o].until = IF Rule("target") THEN end
                                                     ELSE IF Rule("highest") THEN Max(copies[Home].position, copies[Other].position)
                                                     ELSE Lowest]
  /\ UNCHANGED <<end, copies, docs, session, registered, decided, saved, born, made, spent>>

(* Drop, second half, by the command or by any keeper: sweep each shard, mark it in its copy, then forget. *)
Finish(o) == /\ op[o].pc = "none"
             /\ IF Rule("counts") THEN Agreed ELSE Home \in Present
             /\ \E g \in Agreement.dropping, nonce \in Unused(Successor(Agreement, 0)) :
                  op' = [op EXCEPT ![o] = NewCommand("fence", "forget", g, Successor(Changed(Agreement, "forget", g), nonce))]
             /\ UNCHANGED <<end, copies, docs, session, registered, decided, saved, born, made, spent>>

(* The drop reads the record, and deletes what it has found in a later step: no script can compare the record, because the
   keys are in many slots. It may stand still in between, while Redis is emptied and the lines fill it again.         *)
Read(o) == /\ op[o].pc = "sweep" /\ Agreed /\ Stamp(Agreement) = Stamp(op[o].base)
           /\ op' = [op EXCEPT ![o].may = Shards \ op[o].swept]
           /\ op[o].may # Shards \ op[o].swept
           /\ UNCHANGED <<end, copies, docs, session, registered, decided, saved, born, made, spent>>

Sweep(o, s) == /\ op[o].pc = "sweep" /\ s \in op[o].may
               /\ Rule("sweep-history") => s \in op[o].same
               /\ docs' = [docs EXCEPT ![op[o].g][EntityIn(s)] = NoDocument]
               /\ op' = [op EXCEPT ![o].swept = @ \cup {s}, ![o].may = @ \ {s}]
               /\ UNCHANGED <<end, copies, session, registered, decided, saved, born, made, spent>>

Mark(o, s) == /\ op[o].pc = "sweep" /\ s \in op[o].swept /\ s \in Present
              /\ op[o].g \in copies[s].part.dropping \ copies[s].swept
              /\ Rule("sweep-history") => s \in op[o].same
              /\ copies' = [copies EXCEPT ![s].swept = @ \cup {op[o].g}]
              /\ UNCHANGED <<end, docs, session, op, registered, decided, saved, born, made, spent>>

Forget(o) == /\ op[o].pc = "sweep" /\ Agreed /\ Stamp(Agreement) = Stamp(op[o].base)
             /\ Rule("swept") => \A s \in Shards : op[o].g \in copies[s].swept
             /\ op' = [op EXCEPT ![o].pc = "change", ![o].incarnation = copies[Home].incarnation]
             /\ UNCHANGED <<end, copies, docs, session, registered, decided, saved, born, made, spent>>

(* Rebuild, second half: replay [1, until] into the new generation, then say so in each copy. *)
Resume(o) == /\ op[o].pc = "none" /\ Agreed /\ "rebuild" \in Commands
             /\ \E g \in Agreement.written :
                  /\ \E s \in Shards : g \notin copies[s].filled \cup copies[s].filling
                  /\ op' = [op EXCEPT ![o] = NewCommand("fence", "rebuild", g, Agreement)]
             /\ UNCHANGED <<end, copies, docs, session, registered, decided, saved, born, made, spent>>

Replay(o) == /\ op[o].pc = "replay" /\ session[o].pc = "idle" /\ Agreed /\ op[o].g \in Agreement.written
             /\ session' = [session EXCEPT ![o] = NewSession(IF op[o].until = 0 THEN "fill" ELSE "write", 0, op[o].until)]
             /\ UNCHANGED <<end, copies, docs, op, registered, decided, saved, born, made, spent>>

FillReplayed(o, s) ==
  /\ session[o].pc = "fill" /\ s \in session[o].open /\ s \in Present
  /\ op[o].g \notin copies[s].filled
  /\ Rule("filling") => op[o].g \notin copies[s].filling
  /\ IF Agrees(o, s)
     THEN copies' = [copies EXCEPT ![s].filled = @ \cup {op[o].g}] /\ UNCHANGED session
     ELSE session' = [session EXCEPT ![o] = NoSession] /\ UNCHANGED copies
  /\ UNCHANGED <<end, docs, op, registered, decided, saved, born, made, spent>>

Replayed(o) == /\ op[o].pc = "replay" /\ session[o].pc = "fill"
               /\ \A s \in Present : op[o].g \in copies[s].filled \cup copies[s].filling
               /\ op' = [op EXCEPT ![o] = NoCommand]
               /\ session' = [session EXCEPT ![o] = NoSession]
               /\ UNCHANGED <<end, copies, docs, registered, decided, saved, born, made, spent>>

Progress(o) == \/ Change(o) \/ Roll(o) \/ Counts(o) \/ End(o) \/ Fenced(o) \/ Finish(o) \/ Read(o) \/ Forget(o)
               \/ Replay(o) \/ Replayed(o) \/ \E p \in Processes : Close(o, p)
               \/ \E s \in Shards : Sweep(o, s) \/ Mark(o, s) \/ FillReplayed(o, s)

(* ---- Faults of Redis --------------------------------------------------------------------------------------------- *)

Empty(shards) == /\ spent.emptied < MaxEmptied
                 /\ spent' = [spent EXCEPT !.emptied = @ + 1]
                 /\ copies' = [s \in Shards |-> IF s \in shards THEN Missing ELSE copies[s]]
                 /\ docs' = [g \in Generations |->
                      [e \in Entities |-> IF At(e) \in shards THEN NoDocument ELSE docs[g][e]]]
                 /\ registered' = IF Home \in shards /\ ~Rule("connections") THEN {} ELSE registered
                 /\ UNCHANGED <<end, session, op, decided, saved, born, made>>

(* The replica of a shard stops following, or a backup of it is made (not in the second in which the shard has no copy: a
   limit, which docs/how-it-works.md names) ...                                                                     *)
Save(s) == /\ saved[s] = NotSaved /\ s \in Present /\ spent.back < MaxBack /\ \E shards \in Back : s \in shards
           /\ saved' = [saved EXCEPT ![s] = [copy |-> copies[s], docs |-> [g \in Generations |-> docs[g][EntityIn(s)]]]]
           /\ UNCHANGED <<end, copies, docs, session, op, registered, decided, born, made, spent>>

(* ... and becomes the primary, or is restored: documents and copy go back together. Every connection to these shards is a
   new one, and their servers have new replication ids.                                                               *)
GoBack(shards) ==
  /\ \A s \in shards : saved[s] # NotSaved
  /\ copies' = [s \in Shards |-> IF s \in shards THEN saved[s].copy ELSE copies[s]]
  /\ docs' = [g \in Generations |-> [e \in Entities |-> IF At(e) \in shards THEN saved[At(e)].docs[g] ELSE docs[g][e]]]
  /\ session' = [p \in Processes |-> IF session[p].pc = "idle" THEN NoSession
                   ELSE [session[p] EXCEPT !.open = @ \ shards,
                                           !.lost = IF Rule("history") THEN @ \cup shards ELSE @]]
  /\ op' = [o \in Operators |-> IF op[o].pc = "none" THEN NoCommand
              ELSE [op[o] EXCEPT !.same = @ \ shards, !.may = IF Rule("sweep-fence") THEN @ \ shards ELSE @]]
  /\ decided' = IF decided.kind = "fill" THEN [decided EXCEPT !.same = @ /\ decided.shard \notin shards] ELSE decided
  /\ registered' = IF Home \in shards /\ ~Rule("connections") THEN {} ELSE registered
  /\ saved' = [s \in Shards |-> NotSaved]
  /\ spent' = [spent EXCEPT !.back = @ + 1]
  /\ UNCHANGED <<end, born, made>>

(* ---- What is answered -------------------------------------------------------------------------------------------- *)

(* The generations whose documents an API process may answer with; none means 503. Without the rule "pointer", a
   process that slept may ask for a generation that was live before.                                                  *)
Answered(e) == LET copy == copies[At(e)] IN
  IF copy = Missing THEN {}
  ELSE IF Rule("complete") /\ copy.part.live \notin copy.filled THEN {}
  ELSE IF Rule("pointer") THEN {copy.part.live} ELSE {g \in Generations : g <= copy.part.live}

(* Every step is followed by readers. What went back in time has lost what was answered from there, and all changes if it
   was everything.                                                                                                    *)
Undone == [epoch |-> 0]
Look(lost) ==
  /\ seen' = [e \in Entities |->
       Highest({IF At(e) \in lost THEN 0 ELSE seen[e]} \cup {docs'[g][e].version : g \in Answered(e)'})]
  /\ counted' = IF lost = Shards THEN [lineage |-> 0, epoch |-> 0, nonce |-> 0]
                ELSE IF ~Agreed' \/ counted = Undone THEN counted
                ELSE IF Stamp(counted) = Stamp(Agreement)' \/ Older(counted, Agreement') THEN Agreement' ELSE Undone

Step == \/ Produce \/ Keeper
        \/ \E p \in Writers : Open(p) \/ Poll(p) \/ CoverOthers(p) \/ CoverHome(p)
        \/ \E p \in Processes : Write(p) \/ Reconnect(p) \/ GiveUp(p) \/ Crash(p) \/ Heartbeat(p)
        \/ \E o \in Operators : Ask(o) \/ Resume(o) \/ Progress(o) \/ Die(o)
        \/ \E shards \in Emptied : Empty(shards)
        \/ \E s \in Shards : Save(s)

(* ---- What must hold ---------------------------------------------------------------------------------------------- *)

(* Of two copies with one stamp, both say the same. *)
OneRecord == \A s, t \in Present : Stamp(copies[s].part) = Stamp(copies[t].part) => copies[s].part = copies[t].part

(* A change that counted is never undone. *)
NeverUndone == counted # Undone

(* What is answered is not older than what was answered before, unless Redis lost it. *)
NoStepBack == \A e \in Entities : \A g \in Answered(e) : docs[g][e].version >= seen[e]

(* No answer but 503 from a shard that is not complete: it holds all that Kafka held when its copy was made. *)
Complete == \A e \in Entities : \A g \in Answered(e) : \A i \in 1..copies[At(e)].needs :
              EntityOf(i) = e => docs[g][e].version >= i

(* A position covers only what is written in every written generation. *)
Covered == \A s \in Present : \A g \in (copies[s].filled \cup copies[s].filling) \cap copies[s].part.written :
             \A i \in 1..copies[s].position : At(EntityOf(i)) = s => docs[g][EntityOf(i)].version >= i

(* No document of a generation was mapped by a program that is older than the generation. *)
Mapped == Agreed => \A g \in Agreement.written, e \in Entities :
            docs[g][e].version > 0 => docs[g][e].by >= MappingOf(Agreement, g)

(* When all is quiet: what is served is written and current, and nothing of a dropped generation is left. *)
Quiet == /\ Agreed /\ Agreement.dropping = {}
         /\ \A p \in Processes : session[p].pc = "idle"
         /\ \A o \in Operators : op[o].pc = "none"
Newest(e) == Highest({0} \cup {i \in 1..end : EntityOf(i) = e})
Full == \A s \in Shards : /\ copies[s].position = end /\ copies[s].part.live \in copies[s].filled
Current == Quiet /\ Full => /\ Agreement.live \in Agreement.written
                            /\ \A e \in Entities : docs[Agreement.live][e].version = Newest(e)
NothingLeft == Quiet => \A g \in Generations \ Agreement.written : \A e \in Entities : docs[g][e] = NoDocument

(* No dead end: after the last fault and the last command, everything is served again, and nothing is left to drop. *)
Well == /\ Agreed /\ Full /\ Agreement.dropping = {}
        /\ \A e \in Entities : docs[Agreement.live][e].version = Newest(e)
Recovers == <>[]Well

Rest == Well /\ UNCHANGED vars        \* the only state in which nothing need happen any more
Next == (Step /\ Look({})) \/ (\E shards \in Back : GoBack(shards) /\ Look(shards)) \/ Rest
Spec == Init /\ [][Next]_vars

Line(p) == Open(p) \/ Poll(p) \/ Write(p) \/ CoverOthers(p) \/ CoverHome(p) \/ GiveUp(p)
Fair == /\ \A p \in Writers : WF_vars(Line(p) /\ Look({}))
        /\ \A o \in Operators : /\ WF_vars(Progress(o) /\ Look({}))
                                /\ WF_vars((Write(o) \/ GiveUp(o)) /\ Look({}))
        /\ WF_vars(First /\ Look({})) /\ WF_vars(BringBack /\ Look({}))
        /\ \A s \in Shards : /\ WF_vars(Restore(s) /\ Look({}))
                             /\ WF_vars(RollForward(s) /\ Look({}))
                             /\ WF_vars(Fill(s) /\ Look({}))
FairSpec == Spec /\ Fair

Twins == Permutations(Writers \ OldPrograms) \cup Permutations(Operators)
================================================================================
