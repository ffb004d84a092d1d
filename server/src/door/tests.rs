//! Who is let in, who has to go, and when.

use std::time::UNIX_EPOCH;

use dl_runtime::ManualClock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

struct Rig {
    listener: TcpListener,
    door: Door,
    clock: Arc<ManualClock>,
}

async fn rig(known_max: usize, has_tls: bool) -> Rig {
    rig_with(known_max, has_tls, Stalls::never()).await
}

async fn rig_with(known_max: usize, has_tls: bool, stalls: Stalls) -> Rig {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
    let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
    let door = Door::new(known_max, has_tls, stalls, time);
    Rig { listener, door, clock }
}

impl Rig {
    async fn connect(&self) -> (TcpStream, Guest) {
        let client = TcpStream::connect(self.listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = self.listener.accept().await.unwrap();
        (client, self.door.enter(stream))
    }
}

#[tokio::test]
async fn a_newcomer_that_asks_nothing_goes_and_one_that_asked_stays() {
    let rig = rig(1, false).await;
    let (_silent, mut guest) = rig.connect().await;
    let (mut asking, mut known) = rig.connect().await;
    assert!(known.ticket.keep() && known.ticket.keep());
    assert_eq!(rig.door.open(), (1, 1));
    rig.clock.advance(NEWCOMER_PATIENCE);
    let error = guest.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    asking.write_u8(7).await.unwrap();
    assert_eq!(known.read_u8().await.unwrap(), 7);
    drop(guest);
    assert_eq!(rig.door.open(), (0, 1));
    let (_client, third) = rig.connect().await;
    assert!(!third.ticket.keep());
    drop(known);
    assert!(third.ticket.keep());
    drop(third);
    assert_eq!(rig.door.open(), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_let_through_while_it_waits_for_more_is_not_closed() {
    let rig = rig(8, false).await;
    for _ in 0..2_000 {
        let (mut client, mut guest) = rig.connect().await;
        let ticket = guest.ticket.clone();
        let reading = dl_runtime::spawn(async move { guest.read_u8().await });
        tokio::task::yield_now().await;
        assert!(ticket.keep());
        client.write_u8(7).await.unwrap();
        assert_eq!(reading.await.unwrap().unwrap(), 7);
    }
}

#[tokio::test]
async fn when_many_newcomers_are_there_the_oldest_goes() {
    let rig = rig(8, false).await;
    let (_first, mut oldest) = rig.connect().await;
    let mut others = Vec::new();
    for _ in 0..NEWCOMERS_MAX {
        others.push(rig.connect().await);
    }
    assert_eq!(rig.door.open(), (NEWCOMERS_MAX, 0));
    oldest.read_u8().await.unwrap_err();
    assert_eq!(rig.door.counts().closed.load(Ordering::Relaxed), 1);
    let (client, newest) = others.last_mut().unwrap();
    client.write_u8(1).await.unwrap();
    assert_eq!(newest.read_u8().await.unwrap(), 1);
}

#[tokio::test]
async fn a_plain_client_at_a_port_with_tls_is_told_in_its_own_language() {
    let rig = rig(8, true).await;
    let (mut client, mut guest) = rig.connect().await;
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let reading = dl_runtime::spawn(async move { guest.read_u8().await.unwrap_err().kind() });
    let mut told = vec![0; SPEAK_TLS.len()];
    client.read_exact(&mut told).await.unwrap();
    assert_eq!(told, SPEAK_TLS);
    drop(client);
    assert_eq!(reading.await.unwrap(), io::ErrorKind::InvalidData);
    let payload = SPEAK_TLS.len() - 18;
    assert_eq!(SPEAK_TLS[11] as usize, payload, "the length in the second frame");
}

#[tokio::test]
async fn a_connection_that_takes_nothing_is_closed_once_memory_is_short_and_no_other_is() {
    let budget = Budget::new(100, "test");
    let patience = Duration::from_secs(20);
    let rig = rig_with(8, false, Stalls { patience, memory: Arc::new([budget.clone()]) }).await;
    let (_client, mut stuck) = rig.connect().await;
    let (_other, mut moving) = rig.connect().await;
    assert!(stuck.ticket.keep() && moving.ticket.keep());
    let _lies = stuck.ticket.waiting().begin();
    let mut byte = [0];
    let mut room = None;
    for period in 0..12 {
        let _taken_at_once = moving.ticket.waiting().begin();
        rig.clock.advance(patience / PERIODS);
        assert!(futures::poll!(Box::pin(moving.read(&mut byte))).is_pending());
        let read = futures::poll!(Box::pin(stuck.read(&mut byte)));
        if room.is_none() {
            assert!(read.is_pending(), "nobody wants its memory");
        } else if let Poll::Ready(read) = read {
            assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
            return;
        }
        if period == 4 {
            room = budget.try_take(51, 0);
            assert!(room.is_some());
        }
    }
    panic!("it was never closed");
}

/// Writes until it is told that it may not; the kind of that error.
fn write_on(mut guest: Guest) -> tokio::task::JoinHandle<io::ErrorKind> {
    dl_runtime::spawn(async move {
        loop {
            if let Err(error) = guest.write(&[7; 64 << 10]).await {
                return error.kind();
            }
        }
    })
}

impl Rig {
    /// Waits until nothing goes any more.
    async fn settle(&self) {
        let (mut sent, mut idle) = (0, 0);
        while idle < 200 {
            tokio::task::yield_now().await;
            let now = self.door.counts().sent.load(Ordering::Relaxed);
            idle = if now == sent { idle + 1 } else { 0 };
            sent = now;
        }
    }
}

#[tokio::test]
async fn a_connection_whose_socket_is_full_wakes_and_is_closed_and_one_that_moves_is_not() {
    let patience = Duration::from_secs(20);
    let rig = rig_with(8, false, Stalls { patience, memory: Arc::new([]) }).await;
    let (mut client, guest) = rig.connect().await;
    assert!(guest.ticket.keep());
    let writing = write_on(guest);
    let mut taken = vec![0; 16 << 20];
    for _ in 0..4 {
        rig.settle().await;
        rig.clock.advance(patience - Duration::from_secs(1));
        client.read_exact(&mut taken).await.unwrap();
    }
    rig.settle().await;
    assert!(!writing.is_finished());
    rig.clock.advance(patience);
    assert_eq!(writing.await.unwrap(), io::ErrorKind::ConnectionAborted);
    assert_eq!(rig.door.counts().closed.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_connection_that_takes_a_little_now_and_then_is_closed_once_memory_is_short() {
    let budget = Budget::new(100, "test");
    let patience = Duration::from_secs(20);
    let rig = rig_with(8, false, Stalls { patience, memory: Arc::new([budget.clone()]) }).await;
    let (mut client, guest) = rig.connect().await;
    assert!(guest.ticket.keep());
    let _lies = guest.ticket.waiting().begin();
    let _room = budget.try_take(51, 0).unwrap();
    let writing = write_on(guest);
    let mut taken = vec![0; 16 << 20];
    for _ in 0..=PERIODS {
        rig.settle().await;
        assert!(!writing.is_finished());
        client.read_exact(&mut taken).await.unwrap();
        rig.settle().await;
        rig.clock.advance(patience / PERIODS);
    }
    assert_eq!(writing.await.unwrap(), io::ErrorKind::ConnectionAborted);
}

/// Sends a long answer and ends the connection, without a look at what the client has sent.
fn answer_and_end(mut guest: Guest) -> tokio::task::JoinHandle<io::Result<()>> {
    dl_runtime::spawn(async move {
        guest.write_all(&[7; 1 << 20]).await?;
        guest.shutdown().await
    })
}

#[tokio::test]
async fn bytes_that_were_never_read_take_no_answer_back() {
    let rig = rig(1, false).await;
    let (mut client, guest) = rig.connect().await;
    client.write_all(&[1; 10_000]).await.unwrap();
    let ended = answer_and_end(guest);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, [7; 1 << 20]);
    drop(client);
    ended.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_does_not_end_a_connection_is_not_waited_for_for_long() {
    let rig = rig(1, false).await;
    let (mut client, guest) = rig.connect().await;
    let ended = answer_and_end(guest);
    client.read_to_end(&mut Vec::new()).await.unwrap();
    rig.settle().await;
    assert!(!ended.is_finished());
    rig.clock.advance(LINGER);
    ended.await.unwrap().unwrap();
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}
