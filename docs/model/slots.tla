---------------------------------- MODULE slots ----------------------------------
(* Slots of a cluster: which servers may be believed while slots move, and while a server is emptied or lost for good.

   control.tla has two shards that are always the same. Here a server has slots, and each slot holds a document and
   perhaps a copy of the control record; both move with the slot. One generation is served and written. The copies are
   changed as in control.tla, so each of these steps is one step here, but what a keeper decides and what it does later
   are two: a keeper may stand still in between.

   A rule holds where `Rule("...")` stands; `Off` names the rules that are switched off.                              *)
EXTENDS Integers, FiniteSets, Sequences, TLC

CONSTANTS
  Servers,
  Begin,        \* which server each slot belongs to at the beginning; slot 1 is that of the home copy
  Topic,        \* the slot of the document of each record of Kafka
  Applied, Recorded,   \* how many records are applied at the beginning, and how many Kafka holds then
  MaxMoves, MaxEmptied, MaxLost, MaxFailovers,  \* bounds
  Sleeper,      \* whether one of two keepers may stand still between its decision and what it does
  Off

Rule(name) == name \notin Off

Slots == 1..Len(Begin)
Home == 1
Highest(set) == CHOOSE n \in set : \A m \in set : m <= n
Lowest(set) == CHOOSE n \in set : \A m \in set : m >= n

VARIABLES
  end,      \* how many records Kafka holds
  owner,    \* the server of each slot
  docs,     \* the version of the document in each slot; 0: none
  copies,   \* the copy in each slot
  batch,    \* what a projector is writing
  decided,  \* what a keeper that stands still is about to do
  made,     \* how many copies and changes were ever made: the source of incarnations and stamps
  gone,     \* the servers that were lost for good
  saved,    \* what the replica of one server holds that has stopped following
  spent,
  seen      \* the newest version of each document that anyone may have been answered
vars == <<end, owner, docs, copies, batch, decided, made, gone, saved, spent, seen>>

Missing == [incarnation |-> 0]
NoBatch == [pc |-> "idle"]
Nothing == [kind |-> "nothing"]
NotSaved == [server |-> 0]

SlotsOf(server) == {s \in Slots : owner[s] = server}
Present == {t \in Slots : copies[t] # Missing}
Top == copies[CHOOSE t \in Present : \A u \in Present : copies[u].stamp <= copies[t].stamp].part
TopStamp == Highest({copies[t].stamp : t \in Present})
Listed == Top.listed
WithoutCopy == {v \in Servers : SlotsOf(v) # {} /\ SlotsOf(v) \cap Listed = {}}
AllPresent == Listed \subseteq Present
Agreed == AllPresent /\ WithoutCopy = {} /\ \A t \in Listed : copies[t].stamp = TopStamp
AllFilled == AllPresent /\ \A t \in Listed : copies[t].filled
Position == IF AllPresent THEN Lowest({copies[t].position : t \in Listed}) ELSE 0

FirstOwner(s) == Begin[s]
FirstTags == {Highest({s \in Slots : Begin[s] = v}) : v \in {Begin[s] : s \in Slots} \ {Begin[Home]}} \cup {Home}
TagsOf(map, tags, s) == {t \in tags : map[t] = map[s]}

(* `slots`: the copies that answer for each slot. *)
Init ==
  LET part == [listed |-> FirstTags, slots |-> [s \in Slots |-> TagsOf(Begin, FirstTags, s)]]
      copy == [stamp |-> 1, part |-> part, incarnation |-> 1, filled |-> TRUE, position |-> Applied, needs |-> 0]
      newest(s) == Highest({0} \cup {i \in 1..Applied : Topic[i] = s})
  IN /\ end = Recorded
     /\ owner = [s \in Slots |-> Begin[s]]
     /\ docs = [s \in Slots |-> newest(s)]
     /\ copies = [s \in Slots |-> IF s \in FirstTags THEN copy ELSE Missing]
     /\ batch = NoBatch
     /\ decided = Nothing
     /\ made = 1
     /\ gone = {}
     /\ saved = NotSaved
     /\ spent = [moves |-> 0, emptied |-> 0, failovers |-> 0]
     /\ seen = [s \in Slots |-> newest(s)]

Produce == /\ end < Len(Topic)
           /\ end' = end + 1
           /\ UNCHANGED <<owner, docs, copies, batch, decided, made, gone, saved, spent>>

(* ---- A projector: a batch of one record ---------------------------------------------------------------------------- *)

Open == /\ batch = NoBatch /\ Agreed /\ Position < end
        /\ batch' = [pc |-> "write", i |-> Position + 1, stamp |-> TopStamp,
                     of |-> Listed, incarnations |-> [t \in Slots |-> copies[t].incarnation]]
        /\ UNCHANGED <<end, owner, docs, copies, decided, made, gone, saved, spent>>
Write == /\ batch.pc = "write"
         /\ docs' = [docs EXCEPT ![Topic[batch.i]] = IF @ < batch.i THEN batch.i ELSE @]
         /\ batch' = [batch EXCEPT !.pc = "cover"]
         /\ UNCHANGED <<end, owner, copies, decided, made, gone, saved, spent>>
Cover == /\ batch.pc = "cover"
         /\ copies' = IF \A t \in batch.of : /\ copies[t].incarnation = batch.incarnations[t]
                                             /\ copies[t].stamp = batch.stamp
                      THEN [t \in Slots |-> IF t \in batch.of /\ copies[t].position < batch.i
                                            THEN [copies[t] EXCEPT !.position = batch.i] ELSE copies[t]]
                      ELSE copies
         /\ batch' = NoBatch
         /\ UNCHANGED <<end, owner, docs, decided, made, gone, saved, spent>>

(* ---- Keepers ------------------------------------------------------------------------------------------------------- *)

NewCopy(part, stamp) == [stamp |-> stamp, part |-> part, incarnation |-> made + 1, filled |-> FALSE, position |-> 0,
                         needs |-> end]

Restore(t) == /\ t \in Listed \ Present
              /\ copies' = [copies EXCEPT ![t] = NewCopy(Top, TopStamp)]
              /\ made' = made + 1
              /\ UNCHANGED <<end, owner, docs, batch, decided, gone, saved, spent>>

RollForward(t) == /\ t \in Listed \cap Present /\ copies[t].stamp < TopStamp
                  /\ copies' = [copies EXCEPT ![t].stamp = TopStamp, ![t].part = Top]
                  /\ UNCHANGED <<end, owner, docs, batch, decided, made, gone, saved, spent>>

Fill(t) == /\ t \in Listed \cap Present /\ ~copies[t].filled /\ copies[t].position >= copies[t].needs
           /\ copies' = [copies EXCEPT ![t].filled = TRUE]
           /\ UNCHANGED <<end, owner, docs, batch, decided, made, gone, saved, spent>>

(* A server without a listed copy: slots were moved there, or the slot of its copy was moved away. What a keeper has read
   of the tag it will use; and the copy that it is about to make.                                                      *)
Addition(v) ==
  LET tag == Highest(SlotsOf(v))
      part == [listed |-> Listed \cup {tag}, slots |-> Top.slots]
  IN [kind |-> "add", tag |-> tag, read |-> copies[tag], same |-> TRUE,
      copy |-> [stamp |-> 0, part |-> part, incarnation |-> 0, filled |-> AllFilled,
                position |-> Position, needs |-> Highest({copies[t].needs : t \in Listed})], above |-> TopStamp]

(* Only a copy that the keeper has read is replaced. Where none is, one is made that claims nothing, and it is read. *)
Placeholder(tag) == [stamp |-> TopStamp, part |-> Top, incarnation |-> made + 1, filled |-> FALSE, position |-> 0, needs |-> end]
Do(a) == /\ copies' =
              IF Rule("placeholder") /\ a.read = Missing
              THEN IF copies[a.tag] = Missing THEN [copies EXCEPT ![a.tag] = Placeholder(a.tag)] ELSE copies
              ELSE IF /\ Rule("history") => a.same
                      /\ Rule("exact-copy") => copies[a.tag].incarnation = a.read.incarnation
                              /\ (a.read # Missing => copies[a.tag].stamp = a.read.stamp)
              THEN [copies EXCEPT ![a.tag] = [a.copy EXCEPT !.stamp = a.above + 1, !.incarnation = made + 1]]
              ELSE copies
         /\ made' = made + 1
         /\ UNCHANGED <<end, owner, docs, batch, gone, saved, spent>>

Add(v) == /\ v \in WithoutCopy /\ AllPresent
          /\ Do(Addition(v)) /\ UNCHANGED decided
Decide(v) == /\ Sleeper /\ decided = Nothing /\ v \in WithoutCopy /\ AllPresent
             /\ decided' = Addition(v)
             /\ UNCHANGED <<end, owner, docs, copies, batch, made, gone, saved, spent>>
WakeUp == /\ decided # Nothing
          /\ Do(decided) /\ decided' = Nothing

(* The record says which copies answer for each slot. A slot that has moved has none until all copies are complete. *)
Here == [s \in Slots |-> LET here == TagsOf(owner, Listed, s) IN IF AllFilled THEN here ELSE here \cap Top.slots[s]]
Assign == /\ Rule("slots") /\ Agreed /\ Top.slots # Here
          /\ copies' = [copies EXCEPT ![Home].stamp = TopStamp + 1, ![Home].part.slots = Here]
          /\ UNCHANGED <<end, owner, docs, batch, decided, made, gone, saved, spent>>

Keeper == \/ Assign \/ WakeUp
          \/ \E t \in Slots : Restore(t) \/ RollForward(t) \/ Fill(t)
          \/ \E v \in Servers : Add(v) \/ Decide(v)

(* ---- What happens to the cluster ---------------------------------------------------------------------------------- *)

(* A slot moves with all that it holds. *)
Move(s, v) == /\ spent.moves < MaxMoves /\ v \notin gone /\ owner[s] # v
              /\ spent' = [spent EXCEPT !.moves = @ + 1]
              /\ owner' = [owner EXCEPT ![s] = v]
              /\ UNCHANGED <<end, docs, copies, batch, decided, made, gone, saved>>

(* A limit, which docs/how-it-works.md names: what a server loses is noticed only if the other servers know by then
   which slots it has, and that it has a copy. The API reads with a request only the copies of the server that answers,
   so every one of them has to know where the slots are.                                                              *)
MayLose(v) ==
  LET others == {u \in Present : owner[u] # v}
      known == copies[CHOOSE u \in others : \A w \in others : copies[w].stamp <= copies[u].stamp].part
  IN /\ others # {}
     /\ \E t \in SlotsOf(v) \cap Present : t \in known.listed
     /\ \A s \in SlotsOf(v), u \in others, t \in Slots : t \in copies[u].part.slots[s] => owner[t] = v
Lost(v) == /\ docs' = [s \in Slots |-> IF owner[s] = v THEN 0 ELSE docs[s]]
           /\ copies' = [s \in Slots |-> IF owner[s] = v THEN Missing ELSE copies[s]]
Empty(v) == /\ spent.emptied < MaxEmptied /\ MayLose(v)
            /\ spent' = [spent EXCEPT !.emptied = @ + 1]
            /\ Lost(v)
            /\ UNCHANGED <<end, owner, batch, decided, made, gone, saved>>

(* The replica of a server stops following, and becomes the primary later: what the server holds goes back. Its
   connections are closed, and whoever has read its replication id before notices that it is another one.            *)
Lag(v) == /\ saved = NotSaved /\ spent.failovers < MaxFailovers /\ SlotsOf(v) # {}
          /\ saved' = [server |-> v, slots |-> SlotsOf(v), docs |-> docs, copies |-> copies]
          /\ UNCHANGED <<end, owner, docs, copies, batch, decided, made, gone, spent>>
FailOver == /\ saved # NotSaved /\ SlotsOf(saved.server) = saved.slots /\ MayLose(saved.server)
            /\ docs' = [s \in Slots |-> IF s \in saved.slots THEN saved.docs[s] ELSE docs[s]]
            /\ copies' = [s \in Slots |-> IF s \in saved.slots THEN saved.copies[s] ELSE copies[s]]
            /\ batch' = NoBatch
            /\ decided' = IF decided = Nothing THEN Nothing
                          ELSE [decided EXCEPT !.same = @ /\ decided.tag \notin saved.slots]
            /\ saved' = NotSaved
            /\ spent' = [spent EXCEPT !.failovers = @ + 1]
            /\ UNCHANGED <<end, owner, made, gone>>

(* A server is lost for good: its slots are given to others, empty, each to any of them (`redis-cli --cluster fix`). *)
Remove(v) == /\ Cardinality(gone) < MaxLost /\ v \notin gone /\ MayLose(v)
             /\ gone' = gone \cup {v}
             /\ \E to \in [SlotsOf(v) -> Servers \ gone'] : owner' = [s \in Slots |-> IF owner[s] = v THEN to[s] ELSE owner[s]]
             /\ Lost(v)
             /\ UNCHANGED <<end, batch, decided, made, saved, spent>>

(* ---- What is answered ----------------------------------------------------------------------------------------------- *)

IsComplete(t) == copies[t] # Missing /\ copies[t].filled
Asked(v) == LET own == SlotsOf(v) \cap Listed
            IN IF own = {} THEN {Home} ELSE IF Rule("every-copy") THEN own ELSE {Lowest(own)}
Answers(s) == /\ Present # {}
              /\ \A t \in Asked(owner[s]) : IsComplete(t)
              /\ Rule("slots") => \/ \E t \in SlotsOf(owner[s]) \cap Present : t \in copies[t].part.slots[s]
                                  \/ \A t \in Listed : IsComplete(t)
(* Every step is followed by readers. A failover loses what was answered from its server. *)
Look(lost) == seen' = [s \in Slots |-> LET before == IF s \in lost THEN 0 ELSE seen[s]
                                       IN IF Answers(s)' /\ docs'[s] > before THEN docs'[s] ELSE before]

Step == \/ Produce \/ Open \/ Write \/ Cover \/ Keeper
        \/ \E v \in Servers : Empty(v) \/ Remove(v) \/ Lag(v) \/ \E s \in Slots : Move(s, v)
Well == /\ end = Len(Topic) /\ Agreed /\ AllFilled /\ Position = end
        /\ \A s \in Slots : Answers(s) /\ \A i \in 1..end : Topic[i] = s => docs[s] >= i
Rest == Well /\ UNCHANGED vars        \* the only state in which nothing need happen any more
Next == (Step /\ Look({})) \/ (FailOver /\ Look(saved.slots)) \/ Rest
Spec == Init /\ [][Next]_vars

Three == <<1, 2, 2, 3>>
Two == <<1, 2, 2>>
Records == <<2, 3, 2>>

(* What is answered is not older than what was answered before, even though a server has lost it. *)
NoStepBack == \A s \in Slots : Answers(s) => docs[s] >= seen[s]

(* A position covers only what is stored. *)
Covered == \A i \in 1..Position : docs[Topic[i]] >= i
==================================================================================
